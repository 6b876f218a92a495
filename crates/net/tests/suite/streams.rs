//! Streams beside media: a driver with its forwarder on the same thread forwards media between stream inputs, also if
//! these take long, and serves ready connections in turn.

use engine::{
    ConnectionId, Control, Deadline, Engine, Forward, Input, MediaPacket, Output, PacketVerdict,
    SocketId, SocketKind, Time,
};
use net::{Clock, Driver, DriverConfig};
use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::io::Write as _;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Is busy for a millisecond with each stream input, at whose beginning a media packet arrives.
struct BusyStreamEngine {
    open: VecDeque<(SocketId, SocketKind)>,
    opened: HashMap<SocketId, SocketAddr>,
    speaker: UdpSocket,
    accepted: usize,
    /// The connections of the inputs, in order.
    served: Vec<ConnectionId>,
    bytes: usize,
    /// Stream inputs since the forwarder had a packet, and the most of them.
    waiting: Arc<AtomicUsize>,
    most: usize,
}

impl Engine for BusyStreamEngine {
    fn handle(&mut self, input: Input<'_>, _now: Time) {
        match input {
            Input::Opened { socket, local } => {
                self.opened.insert(socket, local);
            }
            Input::Accepted { .. } => self.accepted += 1,
            Input::Stream { connection, bytes } => {
                self.served.push(connection);
                self.bytes += bytes.len();
                self.speaker
                    .send_to(b"media", self.opened[&SocketId(2)])
                    .unwrap();
                let waiting = self.waiting.fetch_add(1, Ordering::Relaxed) + 1;
                self.most = self.most.max(waiting);
                let begun = Instant::now();
                while begun.elapsed() < Duration::from_millis(1) {
                    std::hint::spin_loop();
                }
            }
            _ => {}
        }
    }

    fn next_output(&mut self) -> Option<Output<'_>> {
        let (socket, kind) = self.open.pop_front()?;
        Some(Output::OpenSocket {
            socket,
            kind,
            local: "127.0.0.1:0".parse().unwrap(),
        })
    }

    fn next_deadline(&self) -> Option<Deadline> {
        None
    }
}

impl Control for BusyStreamEngine {
    type Command = Infallible;
    type Report = Infallible;
    fn next_command(&mut self) -> Option<Infallible> {
        None
    }
    fn report(&mut self, report: Infallible, _now: Time) {
        match report {}
    }
}

/// Resets the number of inputs that a packet has waited for.
struct CountingForwarder {
    waiting: Arc<AtomicUsize>,
}

impl Forward for CountingForwarder {
    type Command = Infallible;
    type Report = Infallible;
    fn command(&mut self, command: Infallible, _now: Time) {
        match command {}
    }
    fn forward(&mut self, _packet: &mut MediaPacket<'_>, _now: Time) -> PacketVerdict {
        self.waiting.store(0, Ordering::Relaxed);
        PacketVerdict::Consumed
    }
    fn timeout(&mut self, _now: Time) {}
    fn next_report(&mut self) -> Option<Infallible> {
        None
    }
    fn next_deadline(&self) -> Option<Deadline> {
        None
    }
}

#[test]
fn media_is_forwarded_between_stream_inputs_and_all_connections_have_their_turn() {
    const CONNECTIONS: usize = 40;
    let waiting = Arc::new(AtomicUsize::new(0));
    let forwarder = CountingForwarder {
        waiting: waiting.clone(),
    };
    let mut driver = Driver::new(DriverConfig::default(), Clock::new(), forwarder).unwrap();
    let mut engine = BusyStreamEngine {
        open: [
            (SocketId(1), SocketKind::TcpListener),
            (SocketId(2), SocketKind::UdpMedia),
        ]
        .into(),
        opened: HashMap::new(),
        speaker: UdpSocket::bind("127.0.0.1:0").unwrap(),
        accepted: 0,
        served: Vec::new(),
        bytes: 0,
        waiting,
        most: 0,
    };
    let begun = Instant::now();
    let mut turn = |engine: &mut BusyStreamEngine| {
        assert!(begun.elapsed() < Duration::from_secs(60), "not reached");
        driver.turn(engine, Duration::from_millis(5)).unwrap();
    };
    while engine.opened.len() < 2 {
        turn(&mut engine);
    }
    let mut peers: Vec<TcpStream> = (0..CONNECTIONS)
        .map(|_| TcpStream::connect(engine.opened[&SocketId(1)]).unwrap())
        .collect();
    while engine.accepted < CONNECTIONS {
        turn(&mut engine);
    }
    // Each connection has data for several turns.
    let mut sent = 0;
    for peer in &mut peers {
        peer.set_nonblocking(true).unwrap();
        sent += peer.write(&[b'x'; 100_000]).unwrap();
    }
    while engine.bytes < sent {
        turn(&mut engine);
    }
    assert!(engine.most <= 2, "media waited for {} inputs", engine.most);
    // A turn has time for two inputs or three, and begins with the connections that the last one left.
    for peer in 0..CONNECTIONS {
        let id = ConnectionId(ConnectionId::ACCEPTED | peer as u64);
        let first = engine.served.iter().position(|served| *served == id);
        assert!(
            first.is_some_and(|first| first <= 3 * CONNECTIONS),
            "{id:?} was served after {first:?} inputs"
        );
    }
}
