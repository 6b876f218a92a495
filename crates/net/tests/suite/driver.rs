//! The driver over loopback: datagrams and streams, both address families, faults of peers, forwarders on the same
//! and on another thread.

use engine::io::Checked;
use engine::{
    CloseReason, ConnectionId, Control, Deadline, DropReason, Engine, Forward, Input, MediaPacket,
    Output, PacketVerdict, SocketId, SocketKind, Time,
};
use net::{Clock, Driver, DriverConfig};
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

#[derive(Clone, Debug)]
enum Request {
    Open(SocketId, SocketKind, SocketAddr),
    Shut(SocketId),
    SetFilter(SocketId, Option<engine::SocketFilter>),
    Datagram(SocketId, SocketAddr, Vec<u8>),
    Connect(ConnectionId, Option<SocketAddr>, SocketAddr),
    Stream(ConnectionId, Vec<u8>),
    Close(ConnectionId),
}

/// An input that the engine received.
#[derive(Clone, Debug, PartialEq)]
enum Recorded {
    Opened(SocketId, SocketAddr),
    OpenFailed(SocketId, String),
    Datagram(SocketId, SocketAddr, Vec<u8>),
    Accepted(ConnectionId, SocketAddr),
    Connected(ConnectionId),
    Closed(ConnectionId, CloseReason),
    Undelivered(SocketAddr, Vec<u8>),
    Shed(u64),
}

/// An engine that records its inputs, and echoes on request.
#[derive(Default)]
struct RecordingEngine {
    out: VecDeque<Request>,
    current: Option<Request>,
    inputs: Vec<Recorded>,
    streams: Vec<(ConnectionId, Vec<u8>)>,
    echo: bool,
    deadline: Option<Time>,
    fired: Vec<(Time, Time)>,
    lateness_of_datagrams: Vec<Duration>,
}

impl RecordingEngine {
    fn opened(&self, id: u32) -> Option<SocketAddr> {
        self.inputs.iter().find_map(|recorded| match recorded {
            Recorded::Opened(socket, local) if socket.0 == id => Some(*local),
            _ => None,
        })
    }
    fn stream(&self, id: ConnectionId) -> &[u8] {
        self.streams
            .iter()
            .find(|(connection, _)| *connection == id)
            .map_or(&[], |(_, bytes)| bytes)
    }
    fn closed(&self) -> Vec<(ConnectionId, CloseReason)> {
        self.inputs
            .iter()
            .filter_map(|recorded| match recorded {
                Recorded::Closed(connection, why) => Some((*connection, *why)),
                _ => None,
            })
            .collect()
    }
}

impl Engine for RecordingEngine {
    fn handle(&mut self, input: Input<'_>, now: Time) {
        let recorded = match input {
            Input::Timeout => {
                if let Some(due) = self.deadline.take_if(|due| *due <= now) {
                    self.fired.push((due, now));
                }
                return;
            }
            Input::Datagram(datagram) => {
                assert!(datagram.arrived <= now);
                self.lateness_of_datagrams.push(now - datagram.arrived);
                let bytes = datagram.bytes.to_vec();
                if self.echo {
                    self.out.push_back(Request::Datagram(
                        datagram.socket,
                        datagram.source,
                        bytes.clone(),
                    ));
                }
                Recorded::Datagram(datagram.socket, datagram.source, bytes)
            }
            Input::Stream { connection, bytes } => {
                if self.echo {
                    self.out
                        .push_back(Request::Stream(connection, bytes.to_vec()));
                }
                match self.streams.iter_mut().find(|(id, _)| *id == connection) {
                    Some((_, all)) => all.extend_from_slice(bytes),
                    None => self.streams.push((connection, bytes.to_vec())),
                }
                return;
            }
            Input::Accepted {
                connection, remote, ..
            } => Recorded::Accepted(connection, remote),
            Input::Connected { connection, .. } => Recorded::Connected(connection),
            Input::Closed {
                connection,
                reason: why,
            } => Recorded::Closed(connection, why),
            Input::Opened { socket, local } => Recorded::Opened(socket, local),
            Input::Secured { .. } => panic!("no TLS is used here"),
            Input::Handoff(_) => panic!("there is one worker"),
            Input::RecordingFailed { .. } => panic!("nothing is recorded"),
            Input::Shed { dropped, .. } => Recorded::Shed(dropped),
            Input::OpenFailed { socket, error } => Recorded::OpenFailed(socket, error.to_owned()),
            Input::Unreachable {
                destination, bytes, ..
            } => Recorded::Undelivered(destination, bytes.to_vec()),
        };
        self.inputs.push(recorded);
    }
    fn next_output(&mut self) -> Option<Output<'_>> {
        self.current = self.out.pop_front();
        Some(match self.current.as_ref()? {
            &Request::Open(socket, kind, local) => Output::OpenSocket {
                socket,
                kind,
                local,
            },
            &Request::Shut(socket) => Output::CloseSocket { socket },
            &Request::SetFilter(socket, filter) => Output::SocketFilter { socket, filter },
            Request::Datagram(socket, destination, bytes) => Output::Datagram {
                socket: *socket,
                destination: *destination,
                bytes,
            },
            &Request::Connect(connection, local, remote) => Output::Connect {
                connection,
                local,
                remote,
                tls: None,
                websocket: false,
            },
            Request::Stream(connection, bytes) => Output::Stream {
                connection: *connection,
                bytes,
            },
            &Request::Close(connection) => Output::Close { connection },
        })
    }
    fn next_deadline(&self) -> Option<Deadline> {
        self.deadline.map(|at| Deadline::new(at, "test"))
    }
}

/// A driver with a probe.
struct Rig {
    driver: Driver,
    engine: Checked<RecordingEngine>,
}

impl Rig {
    fn new(config: DriverConfig) -> Rig {
        Rig {
            driver: Driver::plain(config, Clock::new()).unwrap(),
            engine: Checked::new(RecordingEngine::default()),
        }
    }
    fn open(&mut self, id: u32, kind: SocketKind, local: &str) -> SocketAddr {
        let out = Request::Open(SocketId(id), kind, at(local));
        self.engine.get().out.push_back(out);
        self.run_until(|engine| engine.opened(id).is_some());
        self.engine.get().opened(id).unwrap()
    }
    fn push(&mut self, out: Request) {
        self.engine.get().out.push_back(out);
    }
    fn turn(&mut self) {
        let wait = Duration::from_millis(5);
        self.driver.turn_engine(&mut self.engine, wait).unwrap();
    }
    fn run_until(&mut self, done: impl Fn(&RecordingEngine) -> bool) {
        let start = Instant::now();
        while !done(self.engine.get()) {
            assert!(
                start.elapsed() < Duration::from_secs(20),
                "not reached: {:?}",
                self.engine.get().inputs
            );
            self.turn();
        }
    }
    fn engine(&mut self) -> &mut RecordingEngine {
        self.engine.get()
    }
}

#[test]
fn datagrams_are_echoed_over_ipv4_and_ipv6() {
    for local in ["127.0.0.1:0", "[::1]:0"] {
        for kind in [SocketKind::UdpSignalling, SocketKind::UdpMedia] {
            let mut rig = Rig::new(DriverConfig {
                receive_timestamps: true,
                ..DriverConfig::default()
            });
            rig.engine().echo = true;
            let server = rig.open(1, kind, local);
            let client = UdpSocket::bind(local).unwrap();
            let timeout = Some(Duration::from_secs(20));
            client.set_read_timeout(timeout).unwrap();
            for i in 0..200u32 {
                client.send_to(&i.to_be_bytes(), server).unwrap();
            }
            std::thread::sleep(Duration::from_millis(30));
            rig.run_until(|engine| engine.inputs.len() == 201);
            for i in 0..200u32 {
                let mut buffer = [0; 16];
                let (n, from) = client.recv_from(&mut buffer).unwrap();
                assert_eq!((&buffer[..n], from), (&i.to_be_bytes()[..], server));
            }
            let counters = rig.driver.counters();
            assert_eq!((counters.datagrams_in, counters.datagrams_out), (200, 200));
            assert_eq!((counters.bytes_in, counters.bytes_out), (800, 800));
            // Batching: far fewer calls than datagrams.
            assert!(
                counters.receive_calls + counters.send_calls < 20,
                "{counters:?}"
            );
            // The kernel's time stamps show their queueing delay.
            let least = rig.engine().lateness_of_datagrams.iter().min().copied();
            assert!(least >= Some(Duration::from_millis(20)), "{least:?}");
            assert_eq!(rig.driver.kernel_drops().unwrap(), 0);
        }
    }
}

#[test]
fn oversized_datagrams_are_dropped_and_counted() {
    let mut rig = Rig::new(DriverConfig {
        signalling_datagram: 60_000,
        ..DriverConfig::default()
    });
    rig.engine().echo = true;
    let signalling = rig.open(1, SocketKind::UdpSignalling, "127.0.0.1:0");
    let media = rig.open(2, SocketKind::UdpMedia, "127.0.0.1:0");
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.send_to(&[7; 60_001], signalling).unwrap();
    client.send_to(&[7; 60_000], signalling).unwrap();
    client.send_to(&[7; 2_049], media).unwrap();
    client.send_to(&[], media).unwrap();
    rig.run_until(|engine| engine.inputs.len() == 4);
    let lengths: Vec<usize> = rig
        .engine()
        .inputs
        .iter()
        .filter_map(|recorded| match recorded {
            Recorded::Datagram(_, _, bytes) => Some(bytes.len()),
            _ => None,
        })
        .collect();
    assert_eq!(lengths, [60_000, 0]);
    let drops = rig.driver.counters().drops;
    assert_eq!(drops.get(DropReason::SipTooLarge), 1);
    assert_eq!(drops.get(DropReason::MediaTooLarge), 1);
    assert_eq!(drops.total(), 2);
}

#[test]
fn failed_sends_do_not_affect_other_datagrams() {
    let mut rig = Rig::new(DriverConfig::default());
    rig.open(1, SocketKind::UdpSignalling, "127.0.0.1:0");
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    let good = client.local_addr().unwrap();
    let send = |to, byte: u8| Request::Datagram(SocketId(1), to, vec![byte; 10]);
    for byte in 0..20 {
        rig.push(send(good, byte));
        // Another address family, port 0, and a size above the UDP limit: the kernel refuses each.
        rig.push(send(at("[::1]:9"), 0));
        rig.push(send(at("127.0.0.1:0"), 0));
        rig.push(Request::Datagram(SocketId(1), good, vec![0; 65_508]));
        // A closed port causes an ICMP error.
        rig.push(send(at("127.0.0.1:1"), 0));
    }
    rig.push(Request::Datagram(SocketId(99), good, vec![1]));
    rig.turn();
    client
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    for byte in 0..20 {
        let mut buffer = [0; 16];
        assert_eq!(client.recv(&mut buffer).unwrap(), 10);
        assert_eq!(buffer[0], byte);
    }
    let counters = rig.driver.counters();
    assert_eq!(counters.drops.get(DropReason::SendFailed), 61);
    assert_eq!(counters.datagrams_out, 40);
    assert_eq!(counters.unknown_targets, 1);
}

#[test]
fn address_in_use_is_reported_with_its_error() {
    let mut rig = Rig::new(DriverConfig::default());
    let udp = rig.open(1, SocketKind::UdpSignalling, "127.0.0.1:0");
    let tcp = rig.open(2, SocketKind::TcpListener, "127.0.0.1:0");
    rig.push(Request::Open(SocketId(3), SocketKind::UdpMedia, udp));
    rig.push(Request::Open(SocketId(4), SocketKind::TcpListener, tcp));
    rig.push(Request::Open(
        SocketId(5),
        SocketKind::UdpMedia,
        at("192.0.2.1:9"),
    ));
    rig.turn();
    rig.turn();
    let failed: Vec<(u32, bool)> = rig
        .engine()
        .inputs
        .iter()
        .filter_map(|recorded| match recorded {
            Recorded::OpenFailed(id, error) => Some((id.0, error.contains("in use"))),
            _ => None,
        })
        .collect();
    assert_eq!(failed, [(3, true), (4, true), (5, false)]);
    // After they are closed, both can be opened again.
    rig.push(Request::Shut(SocketId(1)));
    rig.push(Request::Shut(SocketId(2)));
    rig.push(Request::Open(SocketId(6), SocketKind::UdpMedia, udp));
    rig.push(Request::Open(SocketId(7), SocketKind::TcpListener, tcp));
    rig.run_until(|engine| engine.opened(6).is_some() && engine.opened(7).is_some());
}

#[test]
fn ten_thousand_messages_arrive_in_order() {
    let mut server = Rig::new(DriverConfig::default());
    server.engine().echo = true;
    let address = server.open(1, SocketKind::TcpListener, "[::1]:0");
    let mut client = Rig::new(DriverConfig::default());
    let id = ConnectionId(5);
    client.push(Request::Connect(id, None, address));
    let mut sent = Vec::new();
    for i in 0..10_000u32 {
        let message = format!("message {i} {}\r\n", "x".repeat((i % 97) as usize));
        sent.extend_from_slice(message.as_bytes());
        client.push(Request::Stream(id, message.into_bytes()));
        if i % 500 == 0 {
            client.turn();
            server.turn();
        }
    }
    let start = Instant::now();
    while client.engine().stream(id).len() < sent.len() {
        assert!(start.elapsed() < Duration::from_secs(20));
        client.turn();
        server.turn();
    }
    assert_eq!(client.engine().stream(id), sent);
    client.push(Request::Close(id));
    client.run_until(|engine| !engine.closed().is_empty());
    assert_eq!(client.engine().closed(), [(id, CloseReason::Engine)]);
    server.run_until(|engine| !engine.closed().is_empty());
    assert_eq!(server.engine().closed()[0].1, CloseReason::Peer);
    while client.driver.connections() + server.driver.connections() > 0 {
        assert!(start.elapsed() < Duration::from_secs(20));
        client.turn();
        server.turn();
    }
}

#[test]
fn slow_reader_is_closed_and_others_are_served() {
    let mut rig = Rig::new(DriverConfig {
        stream_buffer: 100_000,
        ..DriverConfig::default()
    });
    let address = rig.open(1, SocketKind::TcpListener, "127.0.0.1:0");
    let slow = TcpStream::connect(address).unwrap();
    rig.run_until(|engine| engine.inputs.len() == 2);
    let mut quick = TcpStream::connect(address).unwrap();
    rig.run_until(|engine| engine.inputs.len() == 3);
    let (first, second) = (
        ConnectionId(ConnectionId::ACCEPTED),
        ConnectionId(ConnectionId::ACCEPTED + 1),
    );
    let mut rounds = 0;
    while rig.engine().closed().is_empty() {
        rig.push(Request::Stream(first, vec![1; 50_000]));
        rig.push(Request::Stream(second, vec![2; 10]));
        rig.turn();
        rounds += 1;
        assert!(rounds < 10_000);
    }
    assert_eq!(rig.engine().closed(), [(first, CloseReason::Backpressure)]);
    quick
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    let mut got = vec![0; rounds * 10];
    quick.read_exact(&mut got).unwrap();
    assert!(got.iter().all(|byte| *byte == 2));
    let drops = rig.driver.counters().drops;
    assert_eq!(drops.get(DropReason::StreamBackpressure), 1);
    drop(slow);
}

#[test]
fn half_closed_peer_receives_queued_data() {
    let mut rig = Rig::new(DriverConfig {
        stream_buffer: 32 << 20,
        ..DriverConfig::default()
    });
    rig.engine().echo = true;
    let address = rig.open(1, SocketKind::TcpListener, "127.0.0.1:0");
    let length = 8 << 20;
    let peer = std::thread::spawn(move || {
        let mut stream = TcpStream::connect(address).unwrap();
        let mut writer = stream.try_clone().unwrap();
        let sender = std::thread::spawn(move || {
            writer.write_all(&vec![9; length]).unwrap();
            writer.shutdown(Shutdown::Write).unwrap();
        });
        // Reads late, so that partial writes and a full socket occur.
        std::thread::sleep(Duration::from_millis(200));
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        sender.join().unwrap();
        all
    });
    rig.run_until(|engine| !engine.closed().is_empty());
    assert_eq!(rig.engine().closed()[0].1, CloseReason::Peer);
    while !peer.is_finished() {
        rig.turn();
    }
    assert_eq!(peer.join().unwrap(), vec![9; length]);
    rig.turn();
    assert_eq!(rig.driver.connections(), 0);
}

#[test]
fn refused_reset_and_timed_out_connections_are_reported() {
    let mut rig = Rig::new(DriverConfig {
        connect_timeout: Duration::from_millis(200),
        ..DriverConfig::default()
    });
    let closed_port = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap()
    };
    rig.push(Request::Connect(ConnectionId(1), None, closed_port));
    rig.push(Request::Stream(ConnectionId(1), b"lost".to_vec()));
    rig.run_until(|engine| engine.closed().len() == 1);
    assert_eq!(
        rig.engine().closed(),
        [(ConnectionId(1), CloseReason::ConnectFailed)]
    );

    // With a full backlog the kernel drops the SYN.
    let full = TcpListener::bind("127.0.0.1:0").unwrap();
    rustix::net::listen(&full, 0).unwrap();
    let full_address = full.local_addr().unwrap();
    let _filler = TcpStream::connect(full_address).unwrap();
    let begin = Instant::now();
    rig.push(Request::Connect(ConnectionId(3), None, full_address));
    rig.run_until(|engine| engine.closed().len() == 2);
    assert_eq!(
        rig.engine().closed()[1],
        (ConnectionId(3), CloseReason::ConnectFailed)
    );
    assert!(begin.elapsed() >= Duration::from_millis(200));

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let any = Some(at("127.0.0.1:0"));
    rig.push(Request::Connect(ConnectionId(2), any, address));
    rig.run_until(|engine| {
        engine
            .inputs
            .contains(&Recorded::Connected(ConnectionId(2)))
    });
    let (peer, _) = listener.accept().unwrap();
    // Closing with unread bytes causes a reset.
    rig.push(Request::Stream(ConnectionId(2), b"unread".to_vec()));
    rig.turn();
    std::thread::sleep(Duration::from_millis(20));
    drop(peer);
    rig.run_until(|engine| engine.closed().len() == 3);
    assert_eq!(
        rig.engine().closed()[2],
        (ConnectionId(2), CloseReason::Error)
    );
    assert_eq!(rig.driver.connections(), 0);
}

#[test]
fn connection_limits_are_enforced() {
    let mut rig = Rig::new(DriverConfig {
        connections_per_source: 3,
        ..DriverConfig::default()
    });
    let address = rig.open(1, SocketKind::TcpListener, "127.0.0.1:0");
    let mut peers: Vec<TcpStream> = (0..5)
        .map(|_| TcpStream::connect(address).unwrap())
        .collect();
    rig.run_until(|engine| engine.inputs.len() == 4);
    for refused in &mut peers[3..] {
        assert_eq!(refused.read(&mut [0; 4]).unwrap_or(0), 0);
    }
    assert_eq!(rig.driver.counters().accept_refused, 2);
    // A released slot can be used again.
    peers.truncate(2);
    rig.run_until(|engine| engine.closed().len() == 1);
    let _again = TcpStream::connect(address).unwrap();
    rig.run_until(|engine| engine.inputs.len() == 6);
}

#[test]
fn accepted_connections_leave_room_for_opened_ones() {
    let mut rig = Rig::new(DriverConfig {
        connections: 4,
        ..DriverConfig::default()
    });
    let address = rig.open(1, SocketKind::TcpListener, "127.0.0.1:0");
    let _silent: Vec<TcpStream> = (0..5)
        .map(|_| TcpStream::connect(address).unwrap())
        .collect();
    rig.run_until(|engine| engine.inputs.len() == 5);
    assert_eq!(rig.driver.connections(), 4);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    for id in 1..=5 {
        let remote = listener.local_addr().unwrap();
        rig.push(Request::Connect(ConnectionId(id), None, remote));
    }
    let refused = Recorded::Closed(ConnectionId(5), CloseReason::ConnectFailed);
    rig.run_until(|engine| {
        let opened = (1..=4).map(|id| Recorded::Connected(ConnectionId(id)));
        opened
            .chain([refused.clone()])
            .all(|input| engine.inputs.contains(&input))
    });
}

#[test]
fn rejected_connection_keeps_no_place() {
    let mut rig = Rig::new(DriverConfig::default());
    let address = rig.open(1, SocketKind::TcpListener, "127.0.0.1:0");
    let mut peer = TcpStream::connect(address).unwrap();
    rig.run_until(|engine| engine.inputs.len() == 2);
    let Recorded::Accepted(connection, _) = rig.engine().inputs[1] else {
        panic!("{:?}", rig.engine().inputs);
    };
    rig.push(Request::Close(connection));
    rig.turn();
    assert_eq!(rig.driver.connections(), 0);
    assert_eq!(rig.engine().closed(), [(connection, CloseReason::Engine)]);
    assert_eq!(peer.read(&mut [0; 4]).unwrap_or(0), 0);
}

#[test]
fn deadlines_are_met_within_microseconds_when_spinning() {
    for (spin, bound) in [(0, 20_000), (200, 500)] {
        let mut rig = Rig::new(DriverConfig {
            spin: Duration::from_micros(spin),
            ..DriverConfig::default()
        });
        let mut late = Vec::new();
        for i in 0..100 {
            let due = rig.driver.clock().now() + Duration::from_micros(300 + i);
            rig.engine().deadline = Some(due);
            rig.run_until(|engine| engine.deadline.is_none());
            let (due, fired) = rig.engine().fired.pop().unwrap();
            assert!(fired >= due);
            late.push((fired - due).as_micros());
        }
        late.sort_unstable();
        // The median, because single values may be affected by other load of the machine.
        assert!(late[50] < bound, "spin {spin}: {late:?}");
    }
}

// --- forwarders ---

#[derive(Default)]
struct RelayControl {
    engine: RecordingEngine,
    commands: VecDeque<(SocketId, SocketId, SocketAddr)>,
    reports: Vec<u64>,
}

impl Engine for RelayControl {
    fn handle(&mut self, input: Input<'_>, now: Time) {
        self.engine.handle(input, now);
    }
    fn next_output(&mut self) -> Option<Output<'_>> {
        self.engine.next_output()
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
    due: Option<Time>,
    report: Option<u64>,
    own: Option<(SocketId, SocketAddr)>,
}

impl Forward for Relay {
    type Command = (SocketId, SocketId, SocketAddr);
    type Report = u64;
    fn command(&mut self, command: Self::Command, now: Time) {
        self.table.push(command);
        self.due = Some(now + Duration::from_millis(30));
        self.own = Some((command.1, command.2));
    }
    fn forward(&mut self, packet: &mut MediaPacket<'_>, _now: Time) -> PacketVerdict {
        match packet.bytes().first() {
            None => return PacketVerdict::Consumed,
            Some(b'p') => return PacketVerdict::Punt("asked for"),
            Some(b'd') => return PacketVerdict::Drop(DropReason::MediaMalformed),
            Some(_) => {}
        }
        let Some(route) = self.table.iter().find(|route| route.0 == packet.socket) else {
            return PacketVerdict::Drop(DropReason::MediaNoFlow);
        };
        packet.bytes_mut()[0] = packet.bytes()[0].wrapping_add(1);
        self.packets += 1;
        if self.packets.is_multiple_of(100) {
            self.report = Some(self.packets);
        }
        PacketVerdict::Forward {
            socket: route.1,
            destination: route.2,
        }
    }
    fn timeout(&mut self, now: Time) {
        if self.due.take_if(|due| *due <= now).is_some() {
            self.report = Some(0);
        }
    }
    fn next_packet(&mut self) -> Option<(SocketId, SocketAddr, &[u8])> {
        let (socket, destination) = self.own.take()?;
        Some((socket, destination, b"own"))
    }
    fn next_report(&mut self) -> Option<u64> {
        self.report.take()
    }
    fn next_deadline(&self) -> Option<Deadline> {
        self.due.map(|at| Deadline::new(at, "report"))
    }
}

/// Sends 1,000 packets through a relay; returns everything that is visible from outside.
fn relay(media_thread: bool) -> (Vec<Vec<u8>>, Vec<u64>, Vec<Recorded>, u64, u64) {
    let config = DriverConfig {
        media_thread,
        ..DriverConfig::default()
    };
    let mut driver = Driver::new(config, Clock::new(), Relay::default()).unwrap();
    let mut control = RelayControl::default();
    let sink = UdpSocket::bind("127.0.0.1:0").unwrap();
    sink.set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    let source = UdpSocket::bind("127.0.0.1:0").unwrap();
    for id in [10, 11] {
        control.engine.out.push_back(Request::Open(
            SocketId(id),
            SocketKind::UdpMedia,
            at("127.0.0.1:0"),
        ));
    }
    let wait = Duration::from_millis(5);
    while control.engine.opened(11).is_none() {
        driver.turn(&mut control, wait).unwrap();
    }
    let entry = control.engine.opened(10).unwrap();
    let own = source.local_addr().unwrap();
    control
        .commands
        .push_back((SocketId(10), SocketId(11), sink.local_addr().unwrap()));
    let turn = |driver: &mut Driver<Relay>, control: &mut RelayControl| {
        driver.turn(control, Duration::from_millis(1)).unwrap();
    };
    for _ in 0..3 {
        turn(&mut driver, &mut control);
    }
    let mut received = Vec::new();
    let mut buffer = [0; 256];
    let mut take = |n: usize| {
        for _ in 0..n {
            let length = sink.recv(&mut buffer).unwrap();
            received.push(buffer[..length].to_vec());
        }
    };
    take(1);
    for round in 0..10u8 {
        for i in 0..100u8 {
            source
                .send_to(&[round, i, 0, 0, 0, 0, 0, 0], entry)
                .unwrap();
        }
        source.send_to(b"punt", entry).unwrap();
        source.send_to(b"drop", entry).unwrap();
        source.send_to(&[], entry).unwrap();
        let expected = usize::from(round) + 1;
        let start = Instant::now();
        while control.reports.len() < expected || control.engine.inputs.len() < expected + 2 {
            assert!(start.elapsed() < Duration::from_secs(20));
            turn(&mut driver, &mut control);
        }
        take(100);
    }
    let start = Instant::now();
    while control.reports.len() < 11 {
        assert!(start.elapsed() < Duration::from_secs(20));
        turn(&mut driver, &mut control);
    }
    // A datagram of control leaves through the media socket in both cases.
    let mine = Request::Datagram(SocketId(10), own, b"mine".to_vec());
    control.engine.out.push_back(mine);
    turn(&mut driver, &mut control);
    let (length, from) = source.recv_from(&mut buffer).unwrap();
    assert_eq!((&buffer[..length], from), (&b"mine"[..], entry));
    // A closed port can be opened again at once, although another thread had its socket.
    control.engine.out.push_back(Request::Shut(SocketId(10)));
    let again = Request::Open(SocketId(12), SocketKind::UdpMedia, entry);
    control.engine.out.push_back(again);
    turn(&mut driver, &mut control);
    turn(&mut driver, &mut control);
    assert_eq!(
        control.engine.opened(12),
        Some(entry),
        "{:?}",
        control.engine.inputs
    );
    assert_eq!(driver.media_cpu().is_some(), media_thread);
    let counters = driver.counters();
    let inputs: Vec<Recorded> = control
        .engine
        .inputs
        .iter()
        .filter_map(|recorded| match recorded {
            Recorded::Datagram(socket, _, bytes) => {
                Some(Recorded::Datagram(*socket, at("0.0.0.0:0"), bytes.clone()))
            }
            _ => None,
        })
        .collect();
    let mut reports = control.reports;
    reports.sort_unstable();
    let dropped = counters.drops.get(DropReason::MediaMalformed);
    (received, reports, inputs, dropped, counters.datagrams_in)
}

#[test]
fn forwarder_behaves_the_same_on_one_thread_and_on_two() {
    let same = relay(false);
    assert_eq!(same.0.len(), 1_001);
    assert_eq!(same.0[0], b"own");
    assert_eq!(
        same.0[1..4],
        [
            vec![1, 0, 0, 0, 0, 0, 0, 0],
            vec![1, 1, 0, 0, 0, 0, 0, 0],
            vec![1, 2, 0, 0, 0, 0, 0, 0]
        ]
    );
    assert_eq!(same.1.len(), 11);
    assert_eq!(same.2.len(), 10);
    assert_eq!(same.3, 10);
    assert_eq!(same.4, 1_030);
    assert_eq!(relay(true), same);
}

#[test]
fn waker_ends_the_wait() {
    let mut rig = Rig::new(DriverConfig::default());
    let waker = rig.driver.waker();
    let thread = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        waker.wake();
    });
    let start = Instant::now();
    let turn = rig
        .driver
        .turn_engine(&mut rig.engine, Duration::from_secs(60))
        .unwrap();
    assert!(start.elapsed() < Duration::from_secs(30));
    assert_eq!(turn.ready, 1);
    thread.join().unwrap();
}

#[test]
fn socket_filter_drops_unread_datagrams_and_reports_them() {
    let mut rig = Rig::new(DriverConfig::default());
    let server = rig.open(1, SocketKind::UdpSignalling, "127.0.0.1:0");
    let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
    let filter = engine::SocketFilter {
        matched: engine::Prefix::new(b"new"),
        exempt: engine::SocketFilter::exempting([&b"new but exempt"[..]]),
        pass_share: 0,
        salt: 1,
    };
    rig.push(Request::SetFilter(SocketId(1), Some(filter)));
    rig.run_until(|engine| engine.inputs.contains(&Recorded::Shed(0)));
    let send = |beginning: &str| {
        let text = format!("{beginning}{}", "x".repeat(300));
        peer.send_to(text.as_bytes(), server).unwrap();
    };
    for _ in 0..5 {
        send("new");
    }
    send("new but exempt");
    send("old");
    let received_datagrams = |engine: &RecordingEngine| {
        let datagrams = engine.inputs.iter();
        datagrams
            .filter(|recorded| matches!(recorded, Recorded::Datagram(..)))
            .count()
    };
    rig.run_until(|engine| received_datagrams(engine) == 2);
    rig.push(Request::SetFilter(SocketId(1), None));
    rig.run_until(|engine| engine.inputs.contains(&Recorded::Shed(5)));
    send("new");
    rig.run_until(|engine| received_datagrams(engine) == 3);
    // Detaching an absent filter is no error.
    rig.push(Request::SetFilter(SocketId(1), None));
    rig.push(Request::SetFilter(SocketId(99), None));
    rig.run_until(|engine| {
        engine
            .inputs
            .iter()
            .filter(|recorded| **recorded == Recorded::Shed(0))
            .count()
            == 3
    });
}
