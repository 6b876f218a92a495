//! Measures the cost of a packet: CPU time of this process per datagram received and sent through the driver,
//! microseconds.
//!
//! `cargo run --release -p net --example echo_cost [-- seconds]` runs each case for that long (default 2). A second
//! thread generates the load; its time is not counted. On a shared machine only results of the same run are
//! comparable.

use engine::{
    Control, Deadline, Engine, Forward, Input, MediaPacket, Output, PacketVerdict, SocketId,
    SocketKind, Time,
};
use net::{Clock, Driver, DriverConfig};
use std::convert::Infallible;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Opens its sockets and echoes its input.
struct Echo {
    kind: SocketKind,
    asked: u32,
    wanted: u32,
    opened: Vec<SocketAddr>,
    buffer: [u8; 2048],
    reply: Option<(SocketId, SocketAddr, usize)>,
}

impl Engine for Echo {
    fn handle(&mut self, input: Input<'_>, _now: Time) {
        match input {
            Input::Opened { local, .. } => self.opened.push(local),
            Input::Datagram(d) => {
                let length = d.bytes.len().min(self.buffer.len());
                self.buffer[..length].copy_from_slice(&d.bytes[..length]);
                self.reply = Some((d.socket, d.source, length));
            }
            _ => {}
        }
    }
    fn next_output(&mut self) -> Option<Output<'_>> {
        if self.asked < self.wanted {
            self.asked += 1;
            return Some(Output::OpenSocket {
                socket: SocketId(self.asked),
                kind: self.kind,
                local: SocketAddr::from(([127, 0, 0, 1], 0)),
            });
        }
        let (socket, destination, length) = self.reply.take()?;
        Some(Output::Datagram {
            socket,
            destination,
            bytes: &self.buffer[..length],
        })
    }
    fn next_deadline(&self) -> Option<Deadline> {
        None
    }
}

impl Control for Echo {
    type Command = Infallible;
    type Report = Infallible;
    fn next_command(&mut self) -> Option<Infallible> {
        None
    }
    fn report(&mut self, report: Infallible, _now: Time) {
        match report {}
    }
}

/// Sends each packet back from the socket on which it was received.
struct Reflect;

impl Forward for Reflect {
    type Command = Infallible;
    type Report = Infallible;
    fn command(&mut self, command: Infallible, _now: Time) {
        match command {}
    }
    fn forward(&mut self, packet: &mut MediaPacket<'_>, _now: Time) -> PacketVerdict {
        PacketVerdict::Forward {
            socket: packet.socket,
            destination: packet.source,
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

/// Keeps up to `window` datagrams in flight at each target, round robin, until `stop` is set.
fn load(targets: Vec<SocketAddr>, length: usize, window: usize, stop: Arc<AtomicBool>) {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
    socket
        .set_read_timeout(Some(Duration::from_millis(20)))
        .expect("a timeout");
    let packet = vec![0x80; length];
    let mut buffer = [0; 2048];
    while !stop.load(Ordering::Relaxed) {
        for target in &targets {
            for _ in 0..window {
                socket.send_to(&packet, target).expect("loopback");
            }
        }
        for _ in 0..targets.len() * window {
            if socket.recv(&mut buffer).is_err() {
                break;
            }
        }
    }
}

fn run(name: &str, sockets: u32, window: usize, length: usize, forward: bool, span: Duration) {
    let clock = Clock::new();
    let config = DriverConfig::default();
    let mut control = Echo {
        kind: if forward {
            SocketKind::UdpMedia
        } else {
            SocketKind::UdpSignalling
        },
        asked: 0,
        wanted: sockets,
        opened: Vec::new(),
        buffer: [0; 2048],
        reply: None,
    };
    let mut driver = Driver::new(config, clock, Reflect).expect("a driver");
    let wait = Duration::from_millis(5);
    while control.opened.len() < sockets as usize {
        driver.turn(&mut control, wait).expect("a turn");
    }
    let stop = Arc::new(AtomicBool::new(false));
    let (flag, targets) = (stop.clone(), control.opened.clone());
    let thread = std::thread::spawn(move || load(targets, length, window, flag));
    let end = clock.now() + span;
    let (cpu, before) = (net::thread_cpu(), driver.counters());
    while clock.now() < end {
        driver.turn(&mut control, wait).expect("a turn");
    }
    let cpu = net::thread_cpu() - cpu;
    let after = driver.counters();
    stop.store(true, Ordering::Relaxed);
    thread.join().expect("the load");
    let packets = after.datagrams_out - before.datagrams_out;
    let calls = (after.receive_calls + after.send_calls + after.waits)
        - (before.receive_calls + before.send_calls + before.waits);
    println!(
        "{name:<44} {packets:>9} packets  {:>6.2} us/packet  {:>5.2} calls/packet",
        cpu.as_secs_f64() * 1e6 / packets.max(1) as f64,
        calls as f64 / packets.max(1) as f64,
    );
}

fn main() {
    let seconds: f64 = std::env::args()
        .nth(1)
        .and_then(|text| text.parse().ok())
        .unwrap_or(2.0);
    let span = Duration::from_secs_f64(seconds);
    println!("{}", net::machine().cpu);
    let noise = net::host_noise(Duration::from_millis(200));
    println!(
        "host noise: p99 {:.1} us, max {:.1} us, lost {:.2} %",
        noise.p99_us,
        noise.max_us,
        noise.lost_share * 100.0
    );
    run(
        "signalling, 1 socket, 600 bytes, 32 at a time",
        1,
        32,
        600,
        false,
        span,
    );
    run(
        "signalling, 1 socket, 600 bytes, 1 at a time",
        1,
        1,
        600,
        false,
        span,
    );
    run(
        "media, 1 socket, 172 bytes, 32 at a time",
        1,
        32,
        172,
        true,
        span,
    );
    run(
        "media, 100 sockets, 172 bytes, 1 each",
        100,
        1,
        172,
        true,
        span,
    );
    run(
        "media, 1 socket, 172 bytes, 1 at a time",
        1,
        1,
        172,
        true,
        span,
    );
}
