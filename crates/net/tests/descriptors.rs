//! Exhausted file descriptors: peers are refused at once, and service continues when descriptors are free again. One
//! test in a separate process, because the limit is per process.

use engine::{ConnectionId, Deadline, Engine, Input, Output, SocketId, SocketKind, Time};
use net::{Clock, Driver, DriverConfig};
use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

#[derive(Default)]
struct Server {
    asked: u32,
    local: Option<SocketAddr>,
    failed: Vec<String>,
    accepted: usize,
    closed: usize,
    last: Option<ConnectionId>,
    wanted: u32,
}

impl Engine for Server {
    fn handle(&mut self, input: Input<'_>, _now: Time) {
        match input {
            Input::Opened { local, .. } => {
                self.local.get_or_insert(local);
            }
            Input::OpenFailed { error, .. } => self.failed.push(error.to_owned()),
            Input::Accepted { connection, .. } => {
                self.accepted += 1;
                self.last = Some(connection);
            }
            Input::Closed { .. } => self.closed += 1,
            _ => {}
        }
    }
    fn next_output(&mut self) -> Option<Output<'_>> {
        if self.asked == self.wanted {
            return None;
        }
        self.asked += 1;
        let kind = if self.asked == 1 {
            SocketKind::TcpListener
        } else {
            SocketKind::UdpMedia
        };
        Some(Output::OpenSocket {
            socket: SocketId(self.asked),
            kind,
            local: "127.0.0.1:0".parse().unwrap(),
        })
    }
    fn next_deadline(&self) -> Option<Deadline> {
        None
    }
}

#[test]
fn service_continues_after_descriptor_exhaustion() {
    let mut driver = Driver::plain(DriverConfig::default(), Clock::new()).unwrap();
    let mut server = Server {
        wanted: 1,
        ..Server::default()
    };
    let turn = |driver: &mut Driver, server: &mut Server| {
        driver
            .turn_engine(server, Duration::from_millis(5))
            .unwrap();
    };
    turn(&mut driver, &mut server);
    turn(&mut driver, &mut server);
    let address = server.local.unwrap();
    // The peers first: their descriptors belong to this process, too.
    let mut peers: Vec<TcpStream> = (0..40)
        .map(|_| TcpStream::connect(address).unwrap())
        .collect();
    let open = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64;
    let before = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let limit = rustix::process::Rlimit {
        current: Some(open + 10),
        maximum: before.maximum,
    };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();

    let start = Instant::now();
    while driver.counters().accept_refused + (server.accepted as u64) < 40 {
        assert!(start.elapsed() < Duration::from_secs(20));
        turn(&mut driver, &mut server);
    }
    assert!((5..=15).contains(&server.accepted), "{}", server.accepted);
    let refused = 40 - server.accepted;
    let mut ended = 0;
    for peer in &mut peers {
        peer.set_nonblocking(true).unwrap();
        if !matches!(peer.read(&mut [0; 4]), Err(e) if e.kind() == std::io::ErrorKind::WouldBlock) {
            ended += 1;
        }
    }
    assert_eq!(ended, refused);
    // A socket that the engine opens fails with an error text.
    server.wanted = 2;
    turn(&mut driver, &mut server);
    turn(&mut driver, &mut server);
    assert_eq!(server.failed.len(), 1);
    assert!(server.failed[0].contains("Too many open files"));
    // No busy loop meanwhile: the listener is idle once its backlog is empty.
    let waits = driver.counters().waits;
    let quiet = Instant::now();
    while quiet.elapsed() < Duration::from_millis(100) {
        turn(&mut driver, &mut server);
    }
    assert!(driver.counters().waits - waits <= 25);

    // Descriptors are free again, and service continues.
    drop(peers);
    while driver.connections() > 0 {
        assert!(start.elapsed() < Duration::from_secs(20));
        turn(&mut driver, &mut server);
    }
    assert_eq!(server.closed, server.accepted);
    let _peer = TcpStream::connect(address).unwrap();
    let had = server.accepted;
    while server.accepted == had {
        assert!(start.elapsed() < Duration::from_secs(20));
        turn(&mut driver, &mut server);
    }
}
