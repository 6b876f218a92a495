//! Hosts that take their time, alone or with several workers, and sieves before their sockets.

use engine::{
    Control, Deadline, Engine, Forward, Input, Output, Packet, Parcel, ParcelHead, Prefix, Sieve,
    SocketId, SocketKind, Time, Verdict,
};
use sim::World;
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Sends so many datagrams at once.
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
            return Some(Output::Open {
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

/// Notes when datagrams came and how long they had waited; sifts where asked to.
#[derive(Default)]
struct Clerk {
    out: VecDeque<Output<'static>>,
    came: Vec<(Time, Duration)>,
    dropped: u64,
}

impl Engine for Clerk {
    fn handle(&mut self, input: Input<'_>, now: Time) {
        match input {
            Input::Datagram(datagram) => self.came.push((now, now.since(datagram.arrived))),
            Input::Sifted { dropped, .. } => self.dropped += dropped,
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

fn world(sieve: Option<Sieve>, effort: Duration, datagrams: Vec<Vec<u8>>) -> (World, sim::HostId) {
    let mut world = World::new(1);
    let mut clerk = Clerk::default();
    clerk.out.push_back(Output::Open {
        socket: SocketId(1),
        kind: SocketKind::UdpSignalling,
        local: "10.0.0.2:5060".parse().unwrap(),
    });
    if let Some(sieve) = sieve {
        clerk.out.push_back(Output::Sieve {
            socket: SocketId(1),
            sieve: Some(sieve),
        });
    }
    let ip = |text: &str| -> [IpAddr; 1] { [text.parse().unwrap()] };
    let host = world.add_engine("clerk", &ip("10.0.0.2"), clerk);
    world.set_effort(host, effort);
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
fn what_comes_while_a_host_is_busy_waits_in_its_socket() {
    let effort = Duration::from_millis(10);
    let (mut world, host) = world(None, effort, vec![vec![7; 100]; 50]);
    world.with_engine(host, |clerk: &mut Clerk, _| {
        assert_eq!(clerk.came.len(), 50);
        let (first, waited) = clerk.came[0];
        assert_eq!(waited, Duration::ZERO);
        for (number, (at, waited)) in clerk.came.iter().enumerate() {
            let after = effort * number as u32;
            assert_eq!(at.since(first), after);
            assert!(*waited <= after && *waited + Duration::from_millis(1) >= after);
        }
    });
}

#[test]
fn a_sieve_drops_what_it_should_and_tells() {
    let sieve = Sieve {
        sifted: Prefix::new(b"new"),
        spared: [Prefix::new(b""); 2],
        share: 0,
        salt: 1,
    };
    let of = |beginning: &str| format!("{beginning}{}", "x".repeat(300)).into_bytes();
    let datagrams = vec![of("new"), of("old"), of("new")];
    let (mut world, host) = world(Some(sieve), Duration::ZERO, datagrams);
    world.with_engine(host, |clerk: &mut Clerk, _| {
        assert_eq!((clerk.came.len(), clerk.dropped), (1, 0));
        clerk.out.push_back(Output::Sieve {
            socket: SocketId(1),
            sieve: None,
        });
    });
    world.run_until(Time::from_secs(11));
    world.with_engine(host, |clerk: &mut Clerk, _| assert_eq!(clerk.dropped, 2));
}

/// One of several workers: it hands over what is not its own, and notes when its own came to it, and when datagrams did.
struct Member {
    number: u8,
    out: VecDeque<Output<'static>>,
    hand: Option<(u8, ParcelHead, Vec<u8>)>,
    handed: Vec<u8>,
    came: Vec<Time>,
    own: Vec<(Time, Duration)>,
    dropped: u64,
}

impl Member {
    fn new(number: u8) -> Member {
        let open = Output::Open {
            socket: SocketId(1),
            kind: SocketKind::UdpSignalling,
            local: "10.0.0.2:5060".parse().unwrap(),
        };
        Member {
            number,
            out: [open].into(),
            hand: None,
            handed: Vec::new(),
            came: Vec::new(),
            own: Vec::new(),
            dropped: 0,
        }
    }
}

impl Engine for Member {
    fn handle(&mut self, input: Input<'_>, now: Time) {
        match input {
            Input::Datagram(datagram) => {
                self.came.push(now);
                let owner = datagram.bytes[3];
                let head = ParcelHead::Datagram {
                    local: 0,
                    source: datagram.source,
                    arrived: datagram.arrived,
                    handed: now,
                    passed: 0,
                };
                match owner == self.number {
                    true => self.own.push((now, now.since(datagram.arrived))),
                    false => self.hand = Some((owner, head, datagram.bytes.to_vec())),
                }
            }
            Input::Handed(parcel) => {
                let ParcelHead::Datagram { arrived, .. } = parcel.head else {
                    panic!("{:?}", parcel.head);
                };
                self.own.push((now, now.since(arrived)));
            }
            Input::Sifted { dropped, .. } => self.dropped += dropped,
            _ => {}
        }
    }
    fn next_output(&mut self) -> Option<Output<'_>> {
        if let Some(output) = self.out.pop_front() {
            return Some(output);
        }
        let (worker, head, bytes) = self.hand.take()?;
        self.handed = bytes;
        let parcel = Parcel {
            head,
            bytes: &self.handed,
        };
        Some(Output::Hand { worker, parcel })
    }
    fn next_deadline(&self) -> Option<Deadline> {
        None
    }
}

impl Control for Member {
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
    fn forward(&mut self, _packet: &mut Packet<'_>, _now: Time) -> Verdict {
        Verdict::Consumed
    }
    fn timeout(&mut self, _now: Time) {}
    fn next_report(&mut self) -> Option<()> {
        None
    }
    fn next_deadline(&self) -> Option<Deadline> {
        None
    }
}

/// One peer's datagrams, all of which come to one of two workers, and every second of which is the other's.
fn crew(effort: Duration, datagrams: Vec<Vec<u8>>) -> (World, [sim::HostId; 2], [usize; 2]) {
    let mut world = World::new(1);
    let ip = |text: &str| -> [IpAddr; 1] { [text.parse().unwrap()] };
    let members = (0..2).map(|number| (Member::new(number), NoForwarder));
    let host = world.add_crew("crew", &ip("10.0.0.2"), members.collect());
    world.set_effort(host, effort);
    let burst = Burst {
        to: "10.0.0.2:5060".parse().unwrap(),
        left: datagrams.into(),
        current: Vec::new(),
        opened: false,
    };
    let peer = world.add_engine("burst", &ip("10.0.0.1"), burst);
    world.run_until(Time::from_secs(10));
    let came = |member: &mut Member, _: &mut NoForwarder, _| !member.came.is_empty();
    let reader = usize::from(world.with_member(host, 1, came).unwrap());
    (world, [host, peer], [reader, 1 - reader])
}

#[test]
fn each_worker_of_a_crew_has_a_processor_of_its_own() {
    let effort = Duration::from_millis(10);
    let datagrams = (0..40)
        .map(|number| [b"new".as_slice(), &[number % 2], &[7; 300]].concat())
        .collect();
    let (mut world, [host, _], [reader, other]) = crew(effort, datagrams);
    assert_eq!(world.carried::<Member, NoForwarder>(host), Some(20));
    let own = |member: &mut Member, _: &mut NoForwarder, _| {
        assert_eq!(member.own.len(), 20);
        (member.came.clone(), member.own.clone())
    };
    let (came, read) = world.with_member(host, reader, own).unwrap();
    let (none, handed) = world.with_member(host, other, own).unwrap();
    // One reads all of them, one after the other; the other has its half as it comes, at no cost of the first.
    assert!(none.is_empty());
    for (number, at) in came.iter().enumerate() {
        assert_eq!(at.since(came[0]), effort * number as u32);
    }
    for (read, handed) in read.iter().zip(&handed) {
        let apart = read.0.since(handed.0).max(handed.0.since(read.0));
        assert_eq!(apart, effort);
        assert!(handed.1 <= effort * 40, "{:?}", handed.1);
    }
}

#[test]
fn a_sieve_of_a_worker_drops_what_comes_to_its_socket() {
    let datagrams: Vec<Vec<u8>> = (0..40)
        .map(|number| [b"new".as_slice(), &[number % 2], &[7; 300]].concat())
        .collect();
    for of_reader in [true, false] {
        let (mut world, [host, peer], [reader, other]) =
            crew(Duration::ZERO, datagrams[..2].to_vec());
        let sieve = |sieve: Option<Sieve>| Output::Sieve {
            socket: SocketId(1),
            sieve,
        };
        let with = Sieve {
            sifted: Prefix::new(b"new"),
            spared: [Prefix::new(b""); 2],
            share: 0,
            salt: 1,
        };
        let at = if of_reader { reader } else { other };
        let say = |what: Output<'static>| {
            move |member: &mut Member, _: &mut NoForwarder, _| member.out.push_back(what)
        };
        world.with_member(host, at, say(sieve(Some(with))));
        let more = datagrams[2..].to_vec();
        world.with_engine(peer, |burst: &mut Burst, _| burst.left.extend(more));
        world.run_until(Time::from_secs(11));
        world.with_member(host, at, say(sieve(None)));
        world.run_until(Time::from_secs(12));
        let seen =
            |member: &mut Member, _: &mut NoForwarder, _| (member.came.len(), member.dropped);
        let read = world.with_member(host, reader, seen).unwrap();
        let rest = world.with_member(host, other, seen).unwrap();
        match of_reader {
            true => assert_eq!((read, rest), ((2, 38), (0, 0))),
            false => assert_eq!((read, rest), ((40, 0), (0, 0))),
        }
    }
}
