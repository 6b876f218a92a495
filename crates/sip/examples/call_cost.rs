//! CPU time and memory of a call: two endpoints connected in memory.
//!
//! `cargo run --release -p sip --example call_cost [calls] [standing]`

use engine::{Datagram, Entropy, Input, Output, SocketId, Time, Transport};
use sip::{
    Endpoint, EndpointConfig, Flow, Handler, Indication, Invite, LegId, ListenerConfig, ListenerId,
    MessageContent, Target,
};
use std::net::SocketAddr;
use std::time::Instant;

const SDP: &[u8] = b"v=0\r\no=user1 53655765 2353687637 IN IP4 192.0.2.1\r\ns=-\r\nc=IN IP4 192.0.2.1\r\nt=0 0\r\nm=audio 6000 RTP/AVP 0\r\na=rtpmap:0 PCMU/8000\r\n";

#[derive(Default)]
struct Party {
    answered: Vec<LegId>,
    ended: u64,
}

impl Handler for Party {
    fn on_indication(&mut self, endpoint: &mut Endpoint, indication: Indication<'_>, now: Time) {
        match indication {
            Indication::Offered { leg, .. } => {
                endpoint
                    .progress(leg, 180, &MessageContent::default(), false, now)
                    .expect("ring");
                endpoint
                    .answer(leg, 200, &MessageContent::sdp(SDP), now)
                    .expect("answer");
            }
            Indication::Answered { leg, .. } => {
                endpoint
                    .ack(leg, &MessageContent::default(), now)
                    .expect("ack");
                self.answered.push(leg);
            }
            Indication::Ended { .. } => self.ended += 1,
            _ => {}
        }
    }
}

struct Side {
    endpoint: Endpoint,
    party: Party,
    address: SocketAddr,
    local: ListenerId,
}

fn side(address: &str, seed: u64) -> Side {
    let address = address.parse().expect("an address");
    let config = EndpointConfig {
        limits: engine::Limits {
            transactions: 8_000_000,
            ..engine::Limits::default()
        },
        ..EndpointConfig::default()
    };
    let mut endpoint = Endpoint::new(config, Entropy::from_number(seed));
    let local = endpoint.add_listener(ListenerConfig {
        name: String::from("cost"),
        socket: SocketId(1),
        transport: Transport::Udp,
        address,
        advertised: String::new(),
    });
    Side {
        endpoint,
        party: Party::default(),
        address,
        local,
    }
}

/// Delivers datagrams in both directions until none is left; returns their number.
fn exchange(sides: &mut [Side; 2], buffer: &mut Vec<u8>, now: Time) -> u64 {
    let mut count = 0;
    loop {
        let mut moved = false;
        for from in 0..2 {
            let [a, b] = sides;
            let (sender, receiver) = if from == 0 { (a, b) } else { (b, a) };
            while let Some(output) = sender.endpoint.next_output() {
                let Output::Datagram { bytes, .. } = output else {
                    continue;
                };
                buffer.clear();
                buffer.extend_from_slice(bytes);
                let datagram = Datagram {
                    socket: SocketId(1),
                    source: sender.address,
                    arrived: now,
                    bytes: buffer,
                };
                receiver
                    .endpoint
                    .feed(Input::Datagram(datagram), now, &mut receiver.party);
                count += 1;
                moved = true;
            }
        }
        if !moved {
            return count;
        }
    }
}

fn call(sides: &mut [Side; 2], now: Time) {
    let flow = Flow {
        local: sides[0].local,
        transport: Transport::Udp,
        remote: sides[1].address,
        connection: None,
    };
    let invite = Invite {
        content: MessageContent::sdp(SDP),
        ..Invite::new(Target::new(b"sip:service@192.0.2.2:5060", flow))
    };
    sides[0].endpoint.invite(&invite, now).expect("invite");
}

/// Resident memory of this process in bytes.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split(' ').nth(1).and_then(|word| word.parse().ok());
    pages.unwrap_or(0u64) * 4_096
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(|a| a.parse::<u64>());
    let calls = arguments.next().and_then(Result::ok).unwrap_or(200_000);
    let standing = arguments.next().and_then(Result::ok).unwrap_or(100_000);
    let mut sides = [side("192.0.2.1:5060", 1), side("192.0.2.2:5060", 2)];
    let mut buffer = Vec::new();
    let mut messages = 0;
    // 2,000 calls per second of virtual time, so that ended transactions linger as in service.
    let start = Instant::now();
    let mut now = Time::ZERO;
    for _ in 0..calls {
        now = Time(now.0 + 500_000);
        call(&mut sides, now);
        messages += exchange(&mut sides, &mut buffer, now);
        while let Some(leg) = sides[0].party.answered.pop() {
            let ended = sides[0].endpoint.bye(leg, &MessageContent::default(), now);
            ended.expect("bye");
        }
        messages += exchange(&mut sides, &mut buffer, now);
    }
    let spent = start.elapsed().as_nanos() as f64;
    let census = sides[0].endpoint.census();
    println!(
        "{calls} calls, {messages} messages: {:.0} ns a call for both ends, {:.0} ns a message for one end",
        spent / calls as f64,
        spent / messages as f64 / 2.0
    );
    println!("lingering at 2,000 calls/s: {census:?}");
    assert_eq!(sides[0].party.ended, calls, "every call ended");
    drop(sides);

    let mut sides = [side("192.0.2.1:5060", 3), side("192.0.2.2:5060", 4)];
    let before = resident();
    for _ in 0..standing {
        now = Time(now.0 + 500_000);
        call(&mut sides, now);
        exchange(&mut sides, &mut buffer, now);
    }
    now = Time(now.0 + 60_000_000_000);
    for side in &mut sides {
        side.endpoint.feed(Input::Timeout, now, &mut side.party);
    }
    let census = sides[1].endpoint.census();
    println!(
        "{} standing legs: {} bytes of memory each (kept text {} bytes), timers {}",
        2 * standing,
        resident().saturating_sub(before) / (2 * standing),
        census.kept_bytes / standing as usize,
        census.timers
    );
}
