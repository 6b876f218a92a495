//! The driver over loopback: datagrams and streams, both families, faults of peers, forwarders on one thread and on two.

use engine::io::Checked;
use engine::{
    CloseWhy, ConnectionId, Control, Deadline, DropReason, Engine, Forward, Input, Output, Packet,
    SocketId, SocketKind, Time, Verdict,
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
enum Out {
    Open(SocketId, SocketKind, SocketAddr),
    Shut(SocketId),
    Sieve(SocketId, Option<engine::Sieve>),
    Datagram(SocketId, SocketAddr, Vec<u8>),
    Connect(ConnectionId, Option<SocketAddr>, SocketAddr),
    Stream(ConnectionId, Vec<u8>),
    Close(ConnectionId),
}

/// What an engine was told.
#[derive(Clone, Debug, PartialEq)]
enum Told {
    Opened(SocketId, SocketAddr),
    OpenFailed(SocketId, String),
    Datagram(SocketId, SocketAddr, Vec<u8>),
    Accepted(ConnectionId, SocketAddr),
    Connected(ConnectionId),
    Closed(ConnectionId, CloseWhy),
    Undelivered(SocketAddr, Vec<u8>),
    Sifted(u64),
}

/// Notes what it is told, and echoes where asked to.
#[derive(Default)]
struct Probe {
    out: VecDeque<Out>,
    current: Option<Out>,
    told: Vec<Told>,
    streams: Vec<(ConnectionId, Vec<u8>)>,
    echo: bool,
    deadline: Option<Time>,
    fired: Vec<(Time, Time)>,
    lateness_of_datagrams: Vec<Duration>,
}

impl Probe {
    fn opened(&self, id: u32) -> Option<SocketAddr> {
        self.told.iter().find_map(|told| match told {
            Told::Opened(socket, local) if socket.0 == id => Some(*local),
            _ => None,
        })
    }
    fn stream(&self, id: ConnectionId) -> &[u8] {
        self.streams
            .iter()
            .find(|(connection, _)| *connection == id)
            .map_or(&[], |(_, bytes)| bytes)
    }
    fn closed(&self) -> Vec<(ConnectionId, CloseWhy)> {
        self.told
            .iter()
            .filter_map(|told| match told {
                Told::Closed(connection, why) => Some((*connection, *why)),
                _ => None,
            })
            .collect()
    }
}

impl Engine for Probe {
    fn handle(&mut self, input: Input<'_>, now: Time) {
        let told = match input {
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
                    self.out.push_back(Out::Datagram(
                        datagram.socket,
                        datagram.source,
                        bytes.clone(),
                    ));
                }
                Told::Datagram(datagram.socket, datagram.source, bytes)
            }
            Input::Stream { connection, bytes } => {
                if self.echo {
                    self.out.push_back(Out::Stream(connection, bytes.to_vec()));
                }
                match self.streams.iter_mut().find(|(id, _)| *id == connection) {
                    Some((_, all)) => all.extend_from_slice(bytes),
                    None => self.streams.push((connection, bytes.to_vec())),
                }
                return;
            }
            Input::Accepted {
                connection, remote, ..
            } => Told::Accepted(connection, remote),
            Input::Connected { connection, .. } => Told::Connected(connection),
            Input::Closed { connection, why } => Told::Closed(connection, why),
            Input::Opened { socket, local } => Told::Opened(socket, local),
            Input::Secured { .. } => panic!("nothing here is secured"),
            Input::Handed(_) => panic!("there is one worker"),
            Input::Sifted { dropped, .. } => Told::Sifted(dropped),
            Input::OpenFailed { socket, error } => Told::OpenFailed(socket, error.to_owned()),
            Input::Unreachable {
                destination, bytes, ..
            } => Told::Undelivered(destination, bytes.to_vec()),
        };
        self.told.push(told);
    }
    fn next_output(&mut self) -> Option<Output<'_>> {
        self.current = self.out.pop_front();
        Some(match self.current.as_ref()? {
            &Out::Open(socket, kind, local) => Output::Open {
                socket,
                kind,
                local,
            },
            &Out::Shut(socket) => Output::Shut { socket },
            &Out::Sieve(socket, sieve) => Output::Sieve { socket, sieve },
            Out::Datagram(socket, destination, bytes) => Output::Datagram {
                socket: *socket,
                destination: *destination,
                bytes,
            },
            &Out::Connect(connection, local, remote) => Output::Connect {
                connection,
                local,
                remote,
                secure: None,
                websocket: false,
            },
            Out::Stream(connection, bytes) => Output::Stream {
                connection: *connection,
                bytes,
            },
            &Out::Close(connection) => Output::Close { connection },
        })
    }
    fn next_deadline(&self) -> Option<Deadline> {
        self.deadline.map(|at| Deadline::new(at, "test"))
    }
}

/// A driver with a probe.
struct Rig {
    driver: Driver,
    engine: Checked<Probe>,
}

impl Rig {
    fn new(config: DriverConfig) -> Rig {
        Rig {
            driver: Driver::plain(config, Clock::new()).unwrap(),
            engine: Checked::new(Probe::default()),
        }
    }
    fn open(&mut self, id: u32, kind: SocketKind, local: &str) -> SocketAddr {
        let out = Out::Open(SocketId(id), kind, at(local));
        self.engine.get().out.push_back(out);
        self.run_until(|probe| probe.opened(id).is_some());
        self.engine.get().opened(id).unwrap()
    }
    fn push(&mut self, out: Out) {
        self.engine.get().out.push_back(out);
    }
    fn turn(&mut self) {
        let wait = Duration::from_millis(5);
        self.driver.turn_engine(&mut self.engine, wait).unwrap();
    }
    fn run_until(&mut self, done: impl Fn(&Probe) -> bool) {
        let start = Instant::now();
        while !done(self.engine.get()) {
            assert!(
                start.elapsed() < Duration::from_secs(20),
                "not reached: {:?}",
                self.engine.get().told
            );
            self.turn();
        }
    }
    fn probe(&mut self) -> &mut Probe {
        self.engine.get()
    }
}

#[test]
fn datagrams_are_echoed_in_both_families() {
    for local in ["127.0.0.1:0", "[::1]:0"] {
        for kind in [SocketKind::UdpSignalling, SocketKind::UdpMedia] {
            let mut rig = Rig::new(DriverConfig {
                receive_timestamps: true,
                ..DriverConfig::default()
            });
            rig.probe().echo = true;
            let server = rig.open(1, kind, local);
            let client = UdpSocket::bind(local).unwrap();
            let timeout = Some(Duration::from_secs(5));
            client.set_read_timeout(timeout).unwrap();
            for i in 0..200u32 {
                client.send_to(&i.to_be_bytes(), server).unwrap();
            }
            std::thread::sleep(Duration::from_millis(30));
            rig.run_until(|probe| probe.told.len() == 201);
            for i in 0..200u32 {
                let mut buffer = [0; 16];
                let (n, from) = client.recv_from(&mut buffer).unwrap();
                assert_eq!((&buffer[..n], from), (&i.to_be_bytes()[..], server));
            }
            let counters = rig.driver.counters();
            assert_eq!((counters.datagrams_in, counters.datagrams_out), (200, 200));
            assert_eq!((counters.bytes_in, counters.bytes_out), (800, 800));
            // The point of batches: far fewer calls than datagrams.
            assert!(
                counters.receive_calls + counters.send_calls < 20,
                "{counters:?}"
            );
            // The kernel's stamps tell that they had waited.
            let least = rig.probe().lateness_of_datagrams.iter().min().copied();
            assert!(least >= Some(Duration::from_millis(20)), "{least:?}");
            assert_eq!(rig.driver.kernel_drops().unwrap(), 0);
        }
    }
}

#[test]
fn large_ones_pass_and_too_large_ones_are_counted() {
    let mut rig = Rig::new(DriverConfig {
        signalling_datagram: 60_000,
        ..DriverConfig::default()
    });
    rig.probe().echo = true;
    let signalling = rig.open(1, SocketKind::UdpSignalling, "127.0.0.1:0");
    let media = rig.open(2, SocketKind::UdpMedia, "127.0.0.1:0");
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.send_to(&[7; 60_001], signalling).unwrap();
    client.send_to(&[7; 60_000], signalling).unwrap();
    client.send_to(&[7; 2_049], media).unwrap();
    client.send_to(&[], media).unwrap();
    rig.run_until(|probe| probe.told.len() == 4);
    let lengths: Vec<usize> = rig
        .probe()
        .told
        .iter()
        .filter_map(|told| match told {
            Told::Datagram(_, _, bytes) => Some(bytes.len()),
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
fn failing_sends_do_not_lose_the_others() {
    let mut rig = Rig::new(DriverConfig::default());
    rig.open(1, SocketKind::UdpSignalling, "127.0.0.1:0");
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    let good = client.local_addr().unwrap();
    let send = |to, byte: u8| Out::Datagram(SocketId(1), to, vec![byte; 10]);
    for byte in 0..20 {
        rig.push(send(good, byte));
        // The other family, a port 0, and a size that UDP cannot carry: each is refused by the kernel.
        rig.push(send(at("[::1]:9"), 0));
        rig.push(send(at("127.0.0.1:0"), 0));
        rig.push(Out::Datagram(SocketId(1), good, vec![0; 65_508]));
        // A closed port: an ICMP error comes back.
        rig.push(send(at("127.0.0.1:1"), 0));
    }
    rig.push(Out::Datagram(SocketId(99), good, vec![1]));
    rig.turn();
    client
        .set_read_timeout(Some(Duration::from_secs(5)))
        .unwrap();
    for byte in 0..20 {
        let mut buffer = [0; 16];
        assert_eq!(client.recv(&mut buffer).unwrap(), 10);
        assert_eq!(buffer[0], byte);
    }
    let counters = rig.driver.counters();
    assert_eq!(counters.drops.get(DropReason::SendFailed), 61);
    assert_eq!(counters.datagrams_out, 40);
    assert_eq!(counters.strays, 1);
}

#[test]
fn taken_addresses_are_refused_in_words() {
    let mut rig = Rig::new(DriverConfig::default());
    let udp = rig.open(1, SocketKind::UdpSignalling, "127.0.0.1:0");
    let tcp = rig.open(2, SocketKind::TcpListener, "127.0.0.1:0");
    rig.push(Out::Open(SocketId(3), SocketKind::UdpMedia, udp));
    rig.push(Out::Open(SocketId(4), SocketKind::TcpListener, tcp));
    rig.push(Out::Open(
        SocketId(5),
        SocketKind::UdpMedia,
        at("192.0.2.1:9"),
    ));
    rig.turn();
    rig.turn();
    let failed: Vec<(u32, bool)> = rig
        .probe()
        .told
        .iter()
        .filter_map(|told| match told {
            Told::OpenFailed(id, error) => Some((id.0, error.contains("in use"))),
            _ => None,
        })
        .collect();
    assert_eq!(failed, [(3, true), (4, true), (5, false)]);
    // Once shut, both can be had again.
    rig.push(Out::Shut(SocketId(1)));
    rig.push(Out::Shut(SocketId(2)));
    rig.push(Out::Open(SocketId(6), SocketKind::UdpMedia, udp));
    rig.push(Out::Open(SocketId(7), SocketKind::TcpListener, tcp));
    rig.run_until(|probe| probe.opened(6).is_some() && probe.opened(7).is_some());
}

#[test]
fn ten_thousand_messages_in_order_through_two_drivers() {
    let mut server = Rig::new(DriverConfig::default());
    server.probe().echo = true;
    let address = server.open(1, SocketKind::TcpListener, "[::1]:0");
    let mut client = Rig::new(DriverConfig::default());
    let id = ConnectionId(5);
    client.push(Out::Connect(id, None, address));
    let mut sent = Vec::new();
    for i in 0..10_000u32 {
        let message = format!("message {i} {}\r\n", "x".repeat((i % 97) as usize));
        sent.extend_from_slice(message.as_bytes());
        client.push(Out::Stream(id, message.into_bytes()));
        if i % 500 == 0 {
            client.turn();
            server.turn();
        }
    }
    let start = Instant::now();
    while client.probe().stream(id).len() < sent.len() {
        assert!(start.elapsed() < Duration::from_secs(20));
        client.turn();
        server.turn();
    }
    assert_eq!(client.probe().stream(id), sent);
    client.push(Out::Close(id));
    client.run_until(|probe| !probe.closed().is_empty());
    assert_eq!(client.probe().closed(), [(id, CloseWhy::Engine)]);
    server.run_until(|probe| !probe.closed().is_empty());
    assert_eq!(server.probe().closed()[0].1, CloseWhy::Peer);
    while client.driver.connections() + server.driver.connections() > 0 {
        assert!(start.elapsed() < Duration::from_secs(20));
        client.turn();
        server.turn();
    }
}

#[test]
fn a_slow_reader_is_cut_off_and_others_are_not() {
    let mut rig = Rig::new(DriverConfig {
        stream_buffer: 100_000,
        ..DriverConfig::default()
    });
    let address = rig.open(1, SocketKind::TcpListener, "127.0.0.1:0");
    let slow = TcpStream::connect(address).unwrap();
    rig.run_until(|probe| probe.told.len() == 2);
    let mut quick = TcpStream::connect(address).unwrap();
    rig.run_until(|probe| probe.told.len() == 3);
    let (first, second) = (
        ConnectionId(ConnectionId::ACCEPTED),
        ConnectionId(ConnectionId::ACCEPTED + 1),
    );
    let mut rounds = 0;
    while rig.probe().closed().is_empty() {
        rig.push(Out::Stream(first, vec![1; 50_000]));
        rig.push(Out::Stream(second, vec![2; 10]));
        rig.turn();
        rounds += 1;
        assert!(rounds < 10_000);
    }
    assert_eq!(rig.probe().closed(), [(first, CloseWhy::Backpressure)]);
    quick
        .set_read_timeout(Some(Duration::from_secs(5)))
        .unwrap();
    let mut got = vec![0; rounds * 10];
    quick.read_exact(&mut got).unwrap();
    assert!(got.iter().all(|byte| *byte == 2));
    let drops = rig.driver.counters().drops;
    assert_eq!(drops.get(DropReason::StreamBackpressure), 1);
    drop(slow);
}

#[test]
fn a_half_closed_peer_still_gets_what_waits() {
    let mut rig = Rig::new(DriverConfig {
        stream_buffer: 32 << 20,
        ..DriverConfig::default()
    });
    rig.probe().echo = true;
    let address = rig.open(1, SocketKind::TcpListener, "127.0.0.1:0");
    let length = 8 << 20;
    let peer = std::thread::spawn(move || {
        let mut stream = TcpStream::connect(address).unwrap();
        let mut writer = stream.try_clone().unwrap();
        let sender = std::thread::spawn(move || {
            writer.write_all(&vec![9; length]).unwrap();
            writer.shutdown(Shutdown::Write).unwrap();
        });
        // Reads late, so that partial writes and a full socket are certain.
        std::thread::sleep(Duration::from_millis(200));
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        sender.join().unwrap();
        all
    });
    rig.run_until(|probe| !probe.closed().is_empty());
    assert_eq!(rig.probe().closed()[0].1, CloseWhy::Peer);
    while !peer.is_finished() {
        rig.turn();
    }
    assert_eq!(peer.join().unwrap(), vec![9; length]);
    rig.turn();
    assert_eq!(rig.driver.connections(), 0);
}

#[test]
fn refused_reset_and_timed_out() {
    let mut rig = Rig::new(DriverConfig {
        connect_timeout: Duration::from_millis(200),
        ..DriverConfig::default()
    });
    let closed_port = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap()
    };
    rig.push(Out::Connect(ConnectionId(1), None, closed_port));
    rig.push(Out::Stream(ConnectionId(1), b"lost".to_vec()));
    rig.run_until(|probe| probe.closed().len() == 1);
    assert_eq!(rig.probe().closed(), [(ConnectionId(1), CloseWhy::Refused)]);

    // A backlog that is full answers nothing: the kernel drops the SYN.
    let full = TcpListener::bind("127.0.0.1:0").unwrap();
    rustix::net::listen(&full, 0).unwrap();
    let full_address = full.local_addr().unwrap();
    let _filler = TcpStream::connect(full_address).unwrap();
    let begin = Instant::now();
    rig.push(Out::Connect(ConnectionId(3), None, full_address));
    rig.run_until(|probe| probe.closed().len() == 2);
    assert_eq!(
        rig.probe().closed()[1],
        (ConnectionId(3), CloseWhy::Refused)
    );
    assert!(begin.elapsed() >= Duration::from_millis(200));

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let any = Some(at("127.0.0.1:0"));
    rig.push(Out::Connect(ConnectionId(2), any, address));
    rig.run_until(|probe| probe.told.contains(&Told::Connected(ConnectionId(2))));
    let (peer, _) = listener.accept().unwrap();
    // Closing with unread bytes makes a reset.
    rig.push(Out::Stream(ConnectionId(2), b"unread".to_vec()));
    rig.turn();
    std::thread::sleep(Duration::from_millis(20));
    drop(peer);
    rig.run_until(|probe| probe.closed().len() == 3);
    assert_eq!(rig.probe().closed()[2], (ConnectionId(2), CloseWhy::Error));
    assert_eq!(rig.driver.connections(), 0);
}

#[test]
fn connections_have_limits() {
    let mut rig = Rig::new(DriverConfig {
        connections_per_source: 3,
        ..DriverConfig::default()
    });
    let address = rig.open(1, SocketKind::TcpListener, "127.0.0.1:0");
    let mut peers: Vec<TcpStream> = (0..5)
        .map(|_| TcpStream::connect(address).unwrap())
        .collect();
    rig.run_until(|probe| probe.told.len() == 4);
    for refused in &mut peers[3..] {
        assert_eq!(refused.read(&mut [0; 4]).unwrap_or(0), 0);
    }
    assert_eq!(rig.driver.counters().accept_refused, 2);
    // A place that is given back can be taken.
    peers.truncate(2);
    rig.run_until(|probe| probe.closed().len() == 1);
    let _again = TcpStream::connect(address).unwrap();
    rig.run_until(|probe| probe.told.len() == 6);
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
            rig.probe().deadline = Some(due);
            rig.run_until(|probe| probe.deadline.is_none());
            let (due, fired) = rig.probe().fired.pop().unwrap();
            assert!(fired >= due);
            late.push((fired - due).as_micros());
        }
        late.sort_unstable();
        // The median: single ones may fall to the machine's other work.
        assert!(late[50] < bound, "spin {spin}: {late:?}");
    }
}

// --- forwarders ---

#[derive(Default)]
struct RelayControl {
    probe: Probe,
    commands: VecDeque<(SocketId, SocketId, SocketAddr)>,
    reports: Vec<u64>,
}

impl Engine for RelayControl {
    fn handle(&mut self, input: Input<'_>, now: Time) {
        self.probe.handle(input, now);
    }
    fn next_output(&mut self) -> Option<Output<'_>> {
        self.probe.next_output()
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
    fn forward(&mut self, packet: &mut Packet<'_>, _now: Time) -> Verdict {
        match packet.bytes().first() {
            None => return Verdict::Consumed,
            Some(b'p') => return Verdict::Punt("asked for"),
            Some(b'd') => return Verdict::Drop(DropReason::MediaMalformed),
            Some(_) => {}
        }
        let Some(route) = self.table.iter().find(|route| route.0 == packet.socket) else {
            return Verdict::Drop(DropReason::MediaNoFlow);
        };
        packet.bytes_mut()[0] = packet.bytes()[0].wrapping_add(1);
        self.packets += 1;
        if self.packets.is_multiple_of(100) {
            self.report = Some(self.packets);
        }
        Verdict::Forward {
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

/// 1,000 packets through a relay; gives all that can be seen of it from outside.
fn relay(media_thread: bool) -> (Vec<Vec<u8>>, Vec<u64>, Vec<Told>, u64, u64) {
    let config = DriverConfig {
        media_thread,
        ..DriverConfig::default()
    };
    let mut driver = Driver::new(config, Clock::new(), Relay::default()).unwrap();
    let mut control = RelayControl::default();
    let sink = UdpSocket::bind("127.0.0.1:0").unwrap();
    sink.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let source = UdpSocket::bind("127.0.0.1:0").unwrap();
    for id in [10, 11] {
        control.probe.out.push_back(Out::Open(
            SocketId(id),
            SocketKind::UdpMedia,
            at("127.0.0.1:0"),
        ));
    }
    let wait = Duration::from_millis(5);
    while control.probe.opened(11).is_none() {
        driver.turn(&mut control, wait).unwrap();
    }
    let entry = control.probe.opened(10).unwrap();
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
        while control.reports.len() < expected || control.probe.told.len() < expected + 2 {
            assert!(start.elapsed() < Duration::from_secs(10));
            turn(&mut driver, &mut control);
        }
        take(100);
    }
    let start = Instant::now();
    while control.reports.len() < 11 {
        assert!(start.elapsed() < Duration::from_secs(10));
        turn(&mut driver, &mut control);
    }
    // A datagram of control's own leaves by the media socket in either case.
    let mine = Out::Datagram(SocketId(10), own, b"mine".to_vec());
    control.probe.out.push_back(mine);
    turn(&mut driver, &mut control);
    let (length, from) = source.recv_from(&mut buffer).unwrap();
    assert_eq!((&buffer[..length], from), (&b"mine"[..], entry));
    // A port that was shut can be had again at once, though another thread held it.
    control.probe.out.push_back(Out::Shut(SocketId(10)));
    let again = Out::Open(SocketId(12), SocketKind::UdpMedia, entry);
    control.probe.out.push_back(again);
    turn(&mut driver, &mut control);
    turn(&mut driver, &mut control);
    assert_eq!(
        control.probe.opened(12),
        Some(entry),
        "{:?}",
        control.probe.told
    );
    assert_eq!(driver.media_cpu().is_some(), media_thread);
    let counters = driver.counters();
    let told: Vec<Told> = control
        .probe
        .told
        .iter()
        .filter_map(|told| match told {
            Told::Datagram(socket, _, bytes) => {
                Some(Told::Datagram(*socket, at("0.0.0.0:0"), bytes.clone()))
            }
            _ => None,
        })
        .collect();
    let mut reports = control.reports;
    reports.sort_unstable();
    let dropped = counters.drops.get(DropReason::MediaMalformed);
    (received, reports, told, dropped, counters.datagrams_in)
}

#[test]
fn forwarders_on_one_thread_and_on_two_do_the_same() {
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
fn a_waker_ends_the_wait() {
    let mut rig = Rig::new(DriverConfig::default());
    let waker = rig.driver.waker();
    let thread = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        waker.wake();
    });
    let start = Instant::now();
    let turn = rig
        .driver
        .turn_engine(&mut rig.engine, Duration::from_secs(20))
        .unwrap();
    assert!(start.elapsed() < Duration::from_secs(10));
    assert_eq!(turn.ready, 1);
    thread.join().unwrap();
}

#[test]
fn a_sieve_drops_before_anything_is_read_and_its_drops_are_told() {
    let mut rig = Rig::new(DriverConfig::default());
    let server = rig.open(1, SocketKind::UdpSignalling, "127.0.0.1:0");
    let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
    let sieve = engine::Sieve {
        sifted: engine::Prefix::new(b"new"),
        spared: [&b"new but dear"[..], b""].map(engine::Prefix::new),
        share: 0,
        salt: 1,
    };
    rig.push(Out::Sieve(SocketId(1), Some(sieve)));
    rig.run_until(|probe| probe.told.contains(&Told::Sifted(0)));
    let send = |beginning: &str| {
        let text = format!("{beginning}{}", "x".repeat(300));
        peer.send_to(text.as_bytes(), server).unwrap();
    };
    for _ in 0..5 {
        send("new");
    }
    send("new but dear");
    send("old");
    let came = |probe: &Probe| {
        let datagrams = probe.told.iter();
        datagrams
            .filter(|told| matches!(told, Told::Datagram(..)))
            .count()
    };
    rig.run_until(|probe| came(probe) == 2);
    rig.push(Out::Sieve(SocketId(1), None));
    rig.run_until(|probe| probe.told.contains(&Told::Sifted(5)));
    send("new");
    rig.run_until(|probe| came(probe) == 3);
    // One that is not there is taken away without a word.
    rig.push(Out::Sieve(SocketId(1), None));
    rig.push(Out::Sieve(SocketId(99), None));
    rig.run_until(|probe| {
        probe
            .told
            .iter()
            .filter(|told| **told == Told::Sifted(0))
            .count()
            == 3
    });
}
