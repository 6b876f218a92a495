//! Hosts that take their time, and sieves before their sockets.

use engine::{Deadline, Engine, Input, Output, Prefix, Sieve, SocketId, SocketKind, Time};
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
