//! In the steady state the driver allocates no memory per packet, for forwarded media and for echoed signalling.

use engine::{
    Control, Deadline, Engine, Forward, Input, MediaPacket, Output, PacketVerdict, SocketId,
    SocketKind, Time,
};
use net::{Clock, Driver, DriverConfig, MediaSockets};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::convert::Infallible;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: all calls are passed to the system's allocator; the counter is a constant-initialised thread local without
// a destructor, so accessing it allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's contract is that of the system allocator.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Echoes datagrams from a fixed buffer.
struct Echo {
    asked: u32,
    /// Addresses of media ports to be opened.
    ports: [SocketAddr; 2],
    sockets: [Option<SocketAddr>; 3],
    buffer: [u8; 512],
    reply: Option<(SocketId, SocketAddr, usize)>,
}

impl Engine for Echo {
    fn handle(&mut self, input: Input<'_>, _now: Time) {
        match input {
            Input::Opened { socket, local } => self.sockets[socket.0 as usize] = Some(local),
            Input::Datagram(d) => {
                self.buffer[..d.bytes.len()].copy_from_slice(d.bytes);
                self.reply = Some((d.socket, d.source, d.bytes.len()));
            }
            _ => {}
        }
    }
    fn next_output(&mut self) -> Option<Output<'_>> {
        if self.asked < 3 {
            let (kind, local) = match self.asked {
                0 => (SocketKind::UdpSignalling, "127.0.0.1:0".parse().ok()?),
                n => (SocketKind::UdpMedia, self.ports[n as usize - 1]),
            };
            let socket = SocketId(self.asked);
            self.asked += 1;
            return Some(Output::OpenSocket {
                socket,
                kind,
                local,
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

struct Relay(SocketAddr);

impl Forward for Relay {
    type Command = Infallible;
    type Report = Infallible;
    fn command(&mut self, command: Infallible, _now: Time) {
        match command {}
    }
    fn forward(&mut self, packet: &mut MediaPacket<'_>, _now: Time) -> PacketVerdict {
        PacketVerdict::Forward {
            socket: SocketId(3 - packet.socket.0),
            destination: self.0,
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

/// Two ports that are free at present.
fn free_ports() -> [SocketAddr; 2] {
    let sockets = [0; 2].map(|_| UdpSocket::bind("127.0.0.1:0").unwrap());
    sockets.map(|socket| socket.local_addr().unwrap())
}

#[test]
fn no_allocation_per_packet() {
    assert_no_allocation(MediaSockets::PerPort);
}

#[test]
fn no_allocation_per_packet_on_the_shared_port_socket() {
    assert_no_allocation(MediaSockets::Auto);
}

fn assert_no_allocation(media_sockets: MediaSockets) {
    let sink = UdpSocket::bind("127.0.0.1:0").unwrap();
    let source = UdpSocket::bind("127.0.0.1:0").unwrap();
    let relay = Relay(sink.local_addr().unwrap());
    let config = DriverConfig {
        media_sockets,
        ..DriverConfig::default()
    };
    let mut driver = Driver::new(config, Clock::new(), relay).unwrap();
    if let Some(event) = driver.next_event() {
        let note = event.to_string();
        if note.contains("socket_per_port") {
            eprintln!("skipped: packets of a shared socket: {note}");
            return;
        }
    }
    let mut control = Echo {
        asked: 0,
        ports: free_ports(),
        sockets: [None; 3],
        buffer: [0; 512],
        reply: None,
    };
    let wait = Duration::from_millis(1);
    while control.sockets.iter().any(Option::is_none) {
        driver.turn(&mut control, wait).unwrap();
    }
    let targets = control.sockets.map(Option::unwrap);
    let mut buffer = [0; 512];
    let mut round = |driver: &mut Driver<Relay>, control: &mut Echo| {
        for i in 0..30 {
            source.send_to(&[0x80; 172], targets[i % 3]).unwrap();
        }
        let mut spent = 0;
        for _ in 0..5 {
            let before = COUNT.get();
            driver.turn(control, wait).unwrap();
            spent += COUNT.get() - before;
        }
        for _ in 0..20 {
            assert_eq!(sink.recv(&mut buffer).unwrap(), 172);
        }
        for _ in 0..10 {
            assert_eq!(source.recv(&mut buffer).unwrap(), 172);
        }
        spent
    };
    round(&mut driver, &mut control);
    let mut spent = 0;
    for _ in 0..100 {
        spent += round(&mut driver, &mut control);
    }
    assert_eq!(driver.counters().datagrams_out, 30 * 101);
    assert_eq!(spent, 0, "allocations for 3,000 packets");
}
