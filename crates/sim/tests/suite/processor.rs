//! Hosts with processing time, with one or several workers, and socket filters.

use engine::{
    Control, Deadline, Engine, Forward, HandoffKind, HandoffMessage, Input, MediaPacket, Output,
    PacketVerdict, Prefix, SocketFilter, SocketId, SocketKind, Time,
};
use sim::World;
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Sends these datagrams at once.
struct Burst {
    to: SocketAddr,
    left: VecDeque<Vec<u8>>,
    current: Vec<u8>,
    opened: bool,
}

impl Engine for Burst {
    fn handle(&mut self, _input: Input<'_>, _now: Time) {}
    fn next_output(&mut self) -> Option<Output<'_>> {
        if !self.opened {
            self.opened = true;
            return Some(Output::OpenSocket {
                socket: SocketId(1),
                kind: SocketKind::UdpSignalling,
                local: "10.0.0.1:5060".parse().unwrap(),
            });
        }
        self.current = self.left.pop_front()?;
        Some(Output::Datagram {
            socket: SocketId(1),
            destination: self.to,
            bytes: &self.current,
        })
    }
    fn next_deadline(&self) -> Option<Deadline> {
        None
    }
}

/// Records when datagrams arrived and how long they had waited; installs a socket filter if required.
#[derive(Default)]
struct ArrivalRecorder {
    out: VecDeque<Output<'static>>,
    arrivals: Vec<(Time, Duration)>,
    dropped: u64,
}

impl Engine for ArrivalRecorder {
    fn handle(&mut self, input: Input<'_>, now: Time) {
        match input {
            Input::Datagram(datagram) => self.arrivals.push((now, now.since(datagram.arrived))),
            Input::Shed { dropped, .. } => self.dropped += dropped,
            _ => {}
        }
    }
    fn next_output(&mut self) -> Option<Output<'_>> {
        self.out.pop_front()
    }
    fn next_deadline(&self) -> Option<Deadline> {
        None
    }
}

fn world(
    filter: Option<SocketFilter>,
    processing_time: Duration,
    datagrams: Vec<Vec<u8>>,
) -> (World, sim::HostId) {
    let mut world = World::new(1);
    let mut recorder = ArrivalRecorder::default();
    recorder.out.push_back(Output::OpenSocket {
        socket: SocketId(1),
        kind: SocketKind::UdpSignalling,
        local: "10.0.0.2:5060".parse().unwrap(),
    });
    if let Some(filter) = filter {
        recorder.out.push_back(Output::SocketFilter {
            socket: SocketId(1),
            filter: Some(filter),
        });
    }
    let ip = |text: &str| -> [IpAddr; 1] { [text.parse().unwrap()] };
    let host = world.add_engine("recorder", &ip("10.0.0.2"), recorder);
    world.set_processing_time(host, processing_time);
    let burst = Burst {
        to: "10.0.0.2:5060".parse().unwrap(),
        left: datagrams.into(),
        current: Vec::new(),
        opened: false,
    };
    world.add_engine("burst", &ip("10.0.0.1"), burst);
    world.run_until(Time::from_secs(10));
    (world, host)
}

#[test]
fn datagrams_wait_while_a_host_is_busy() {
    let processing_time = Duration::from_millis(10);
    let (mut world, host) = world(None, processing_time, vec![vec![7; 100]; 50]);
    world.with_engine(host, |recorder: &mut ArrivalRecorder, _| {
        assert_eq!(recorder.arrivals.len(), 50);
        let (first, waited) = recorder.arrivals[0];
        assert_eq!(waited, Duration::ZERO);
        for (number, (at, waited)) in recorder.arrivals.iter().enumerate() {
            let after = processing_time * number as u32;
            assert_eq!(at.since(first), after);
            assert!(*waited <= after && *waited + Duration::from_millis(1) >= after);
        }
    });
}

#[test]
fn socket_filter_drops_and_reports() {
    let filter = SocketFilter {
        matched: Prefix::new(b"new"),
        exempt: SocketFilter::exempting([]),
        pass_share: 0,
        salt: 1,
    };
    let of = |beginning: &str| format!("{beginning}{}", "x".repeat(300)).into_bytes();
    let datagrams = vec![of("new"), of("old"), of("new")];
    let (mut world, host) = world(Some(filter), Duration::ZERO, datagrams);
    world.with_engine(host, |recorder: &mut ArrivalRecorder, _| {
        assert_eq!((recorder.arrivals.len(), recorder.dropped), (1, 0));
        recorder.out.push_back(Output::SocketFilter {
            socket: SocketId(1),
            filter: None,
        });
    });
    world.run_until(Time::from_secs(11));
    world.with_engine(host, |recorder: &mut ArrivalRecorder, _| {
        assert_eq!(recorder.dropped, 2)
    });
}

/// One of several workers: hands off datagrams of the other one, and records the arrival of its own.
struct TestWorker {
    number: u8,
    out: VecDeque<Output<'static>>,
    pending: Option<(u8, HandoffKind, Vec<u8>)>,
    bytes: Vec<u8>,
    arrivals: Vec<Time>,
    own: Vec<(Time, Duration)>,
    dropped: u64,
}

impl TestWorker {
    fn new(number: u8) -> TestWorker {
        let open = Output::OpenSocket {
            socket: SocketId(1),
            kind: SocketKind::UdpSignalling,
            local: "10.0.0.2:5060".parse().unwrap(),
        };
        TestWorker {
            number,
            out: [open].into(),
            pending: None,
            bytes: Vec::new(),
            arrivals: Vec::new(),
            own: Vec::new(),
            dropped: 0,
        }
    }
}

impl Engine for TestWorker {
    fn handle(&mut self, input: Input<'_>, now: Time) {
        match input {
            Input::Datagram(datagram) => {
                self.arrivals.push(now);
                let owner = datagram.bytes[3];
                let head = HandoffKind::Datagram {
                    listener: 0,
                    source: datagram.source,
                    arrived: datagram.arrived,
                    handed_off: now,
                    hops: 0,
                };
                match owner == self.number {
                    true => self.own.push((now, now.since(datagram.arrived))),
                    false => self.pending = Some((owner, head, datagram.bytes.to_vec())),
                }
            }
            Input::Handoff(message) => {
                let HandoffKind::Datagram { arrived, .. } = message.kind else {
                    panic!("{:?}", message.kind);
                };
                self.own.push((now, now.since(arrived)));
            }
            Input::Shed { dropped, .. } => self.dropped += dropped,
            _ => {}
        }
    }
    fn next_output(&mut self) -> Option<Output<'_>> {
        if let Some(output) = self.out.pop_front() {
            return Some(output);
        }
        let (worker, head, bytes) = self.pending.take()?;
        self.bytes = bytes;
        let message = HandoffMessage {
            kind: head,
            bytes: &self.bytes,
        };
        Some(Output::HandOff { worker, message })
    }
    fn next_deadline(&self) -> Option<Deadline> {
        None
    }
}

impl Control for TestWorker {
    type Command = ();
    type Report = ();
    fn next_command(&mut self) -> Option<()> {
        None
    }
    fn report(&mut self, _report: (), _now: Time) {}
}

struct NoForwarder;

impl Forward for NoForwarder {
    type Command = ();
    type Report = ();
    fn command(&mut self, _command: (), _now: Time) {}
    fn forward(&mut self, _packet: &mut MediaPacket<'_>, _now: Time) -> PacketVerdict {
        PacketVerdict::Consumed
    }
    fn timeout(&mut self, _now: Time) {}
    fn next_report(&mut self) -> Option<()> {
        None
    }
    fn next_deadline(&self) -> Option<Deadline> {
        None
    }
}

/// Datagrams of one peer, which one of two workers receives; every second one belongs to the other.
fn two_workers(
    processing_time: Duration,
    datagrams: Vec<Vec<u8>>,
) -> (World, [sim::HostId; 2], [usize; 2]) {
    let mut world = World::new(1);
    let ip = |text: &str| -> [IpAddr; 1] { [text.parse().unwrap()] };
    let workers = (0..2).map(|number| (TestWorker::new(number), NoForwarder));
    let host = world.add_workers("workers", &ip("10.0.0.2"), workers.collect());
    world.set_processing_time(host, processing_time);
    let burst = Burst {
        to: "10.0.0.2:5060".parse().unwrap(),
        left: datagrams.into(),
        current: Vec::new(),
        opened: false,
    };
    let peer = world.add_engine("burst", &ip("10.0.0.1"), burst);
    world.run_until(Time::from_secs(10));
    let arrivals = |worker: &mut TestWorker, _: &mut NoForwarder, _| !worker.arrivals.is_empty();
    let reader = usize::from(world.with_worker(host, 1, arrivals).unwrap());
    (world, [host, peer], [reader, 1 - reader])
}

#[test]
fn each_worker_has_its_own_processor() {
    let processing_time = Duration::from_millis(10);
    let datagrams = (0..40)
        .map(|number| [b"new".as_slice(), &[number % 2], &[7; 300]].concat())
        .collect();
    let (mut world, [host, _], [reader, other]) = two_workers(processing_time, datagrams);
    assert_eq!(world.handoffs::<TestWorker, NoForwarder>(host), Some(20));
    let own = |worker: &mut TestWorker, _: &mut NoForwarder, _| {
        assert_eq!(worker.own.len(), 20);
        (worker.arrivals.clone(), worker.own.clone())
    };
    let (arrivals, read) = world.with_worker(host, reader, own).unwrap();
    let (none, handed) = world.with_worker(host, other, own).unwrap();
    // The receiver processes all of them in turn; the other one processes its half on arrival, without cost for the
    // first.
    assert!(none.is_empty());
    for (number, at) in arrivals.iter().enumerate() {
        assert_eq!(at.since(arrivals[0]), processing_time * number as u32);
    }
    for (read, handed) in read.iter().zip(&handed) {
        let apart = read.0.since(handed.0).max(handed.0.since(read.0));
        assert_eq!(apart, processing_time);
        assert!(handed.1 <= processing_time * 40, "{:?}", handed.1);
    }
}

#[test]
fn worker_filter_drops_only_for_its_own_socket() {
    let datagrams: Vec<Vec<u8>> = (0..40)
        .map(|number| [b"new".as_slice(), &[number % 2], &[7; 300]].concat())
        .collect();
    for of_reader in [true, false] {
        let (mut world, [host, peer], [reader, other]) =
            two_workers(Duration::ZERO, datagrams[..2].to_vec());
        let filter = |filter: Option<SocketFilter>| Output::SocketFilter {
            socket: SocketId(1),
            filter,
        };
        let with = SocketFilter {
            matched: Prefix::new(b"new"),
            exempt: SocketFilter::exempting([]),
            pass_share: 0,
            salt: 1,
        };
        let at = if of_reader { reader } else { other };
        let push_output = |output: Output<'static>| {
            move |worker: &mut TestWorker, _: &mut NoForwarder, _| worker.out.push_back(output)
        };
        world.with_worker(host, at, push_output(filter(Some(with))));
        let more = datagrams[2..].to_vec();
        world.with_engine(peer, |burst: &mut Burst, _| burst.left.extend(more));
        world.run_until(Time::from_secs(11));
        world.with_worker(host, at, push_output(filter(None)));
        world.run_until(Time::from_secs(12));
        let seen = |worker: &mut TestWorker, _: &mut NoForwarder, _| {
            (worker.arrivals.len(), worker.dropped)
        };
        let read = world.with_worker(host, reader, seen).unwrap();
        let rest = world.with_worker(host, other, seen).unwrap();
        match of_reader {
            true => assert_eq!((read, rest), ((2, 38), (0, 0))),
            false => assert_eq!((read, rest), ((40, 0), (0, 0))),
        }
    }
}
