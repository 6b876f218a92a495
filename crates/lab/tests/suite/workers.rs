//! Several workers of one border on one host: whichever of them a message comes to, it reaches the one that it belongs to.

use border::border::Border;
use border::config;
use engine::{ConnectionId, Engine, HashKey, Input, Output, SocketId, SocketKind, Time};
use lab::experiment::File;
use lab::record::Outcome;
use lab::trial::{Trial, simulate};
use media::forward::{Forwarder, ForwarderLimits};
use sim::{HostId, World};
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// A peer by hand: it says what it is told to, and keeps what it hears.
struct Peer {
    ports: Vec<SocketAddr>,
    out: VecDeque<Said>,
    said: Option<Said>,
    heard: Vec<(Way, String)>,
    /// What came of a message that is not whole yet.
    partial: String,
    /// It answers what it is asked, where this says how.
    answers: fn(&str) -> Vec<String>,
}

/// By which way: a port of the peer's, or a connection of its.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Port(usize),
    Stream(u64),
}

enum Said {
    Open(usize),
    Datagram(usize, SocketAddr, String),
    Connect(u64, SocketAddr),
    Stream(u64, String),
}

impl Peer {
    fn new(ip: &str, ports: usize, answers: fn(&str) -> Vec<String>) -> Peer {
        let ip: IpAddr = ip.parse().unwrap();
        Peer {
            ports: (0..ports)
                .map(|at| SocketAddr::new(ip, 6_000 + at as u16))
                .collect(),
            out: (0..ports).map(Said::Open).collect(),
            said: None,
            heard: Vec::new(),
            partial: String::new(),
            answers,
        }
    }

    fn hear(&mut self, way: Way, from: Option<SocketAddr>, text: &str) {
        for answer in (self.answers)(text) {
            self.out.push_back(match (way, from) {
                (Way::Port(at), Some(to)) => Said::Datagram(at, to, answer),
                (Way::Stream(stream), _) => Said::Stream(stream, answer),
                _ => continue,
            });
        }
        self.heard.push((way, text.to_owned()));
    }
}

impl Engine for Peer {
    fn handle(&mut self, input: Input<'_>, _now: Time) {
        match input {
            Input::Datagram(datagram) => {
                let text = String::from_utf8_lossy(datagram.bytes).into_owned();
                let way = Way::Port(datagram.socket.0 as usize);
                self.hear(way, Some(datagram.source), &text);
            }
            Input::Stream { connection, bytes } => {
                self.partial.push_str(&String::from_utf8_lossy(bytes));
                // Nothing here has a body.
                while let Some(end) = self.partial.find("\r\n\r\n") {
                    let rest = self.partial.split_off(end + 4);
                    let text = std::mem::replace(&mut self.partial, rest);
                    self.hear(Way::Stream(connection.0), None, &text);
                }
            }
            _ => {}
        }
    }

    fn next_output(&mut self) -> Option<Output<'_>> {
        self.said = self.out.pop_front();
        Some(match self.said.as_ref()? {
            Said::Open(at) => Output::Open {
                socket: SocketId(*at as u32),
                kind: SocketKind::UdpSignalling,
                local: self.ports[*at],
            },
            Said::Datagram(at, to, text) => Output::Datagram {
                socket: SocketId(*at as u32),
                destination: *to,
                bytes: text.as_bytes(),
            },
            Said::Connect(stream, to) => Output::Connect {
                connection: ConnectionId(*stream),
                local: None,
                remote: *to,
                secure: None,
                websocket: false,
            },
            Said::Stream(stream, text) => Output::Stream {
                connection: ConnectionId(*stream),
                bytes: text.as_bytes(),
            },
        })
    }

    fn next_deadline(&self) -> Option<engine::Deadline> {
        None
    }
}

const WORKERS: u8 = 3;
const BORDER: &str = "10.0.0.1:5060";

const CONFIG: &str = r#"
[[interface]]
name = "all"
listen = ["udp:10.0.0.1:5060", "tcp:10.0.0.1:5060"]
register = "local"
allow = ["10.0.0.0/8"]
[sip]
workers = 3
"#;

struct Bench {
    world: World,
    border: HostId,
    caller: HostId,
    phone: HostId,
}

fn silent(_: &str) -> Vec<String> {
    Vec::new()
}

/// A response to a request, with the headers that its transaction needs.
fn response(request: &str, status: &str, more: &str) -> String {
    let kept = |name: &str| {
        let lines = request.lines().filter(|line| line.starts_with(name));
        lines.map(|line| format!("{line}\r\n")).collect::<String>()
    };
    let to = kept("To: ");
    let to = match to.contains(";tag=") {
        true => to,
        false => format!("{};tag=phone\r\n", to.trim_end()),
    };
    format!(
        "SIP/2.0 {status}\r\n{}{}{to}{}{}{more}Content-Length: 0\r\n\r\n",
        kept("Via: "),
        kept("From: "),
        kept("Call-ID: "),
        kept("CSeq: "),
    )
}

/// A phone that takes every call.
fn answering(text: &str) -> Vec<String> {
    let contact = "Contact: <sip:1000@10.0.0.3:6000>\r\n";
    match text.split(' ').next() {
        Some("INVITE") => vec![
            response(text, "180 Ringing", contact),
            response(text, "200 OK", contact),
        ],
        Some("BYE") => vec![response(text, "200 OK", "")],
        _ => Vec::new(),
    }
}

/// A phone that rings.
fn ringing(text: &str) -> Vec<String> {
    let contact = "Contact: <sip:1000@10.0.0.3:6000>\r\n";
    match text.split(' ').next() {
        Some("INVITE") => vec![response(text, "180 Ringing", contact)],
        Some("CANCEL") => vec![
            response(text, "200 OK", ""),
            response(text, "487 Request Terminated", "").replace("1 CANCEL", "1 INVITE"),
        ],
        _ => Vec::new(),
    }
}

impl Bench {
    fn new(answers: fn(&str) -> Vec<String>) -> Bench {
        Bench::with(CONFIG, answers)
    }

    fn with(config: &str, answers: fn(&str) -> Vec<String>) -> Bench {
        let mut world = World::new(1);
        let mut entropy = world.entropy();
        let config = config::parse(config, "t").unwrap();
        let key = HashKey::new(&mut entropy);
        let members = Border::crew(config, WORKERS, entropy)
            .into_iter()
            .map(|border| (border, Forwarder::new(ForwarderLimits::default(), key)))
            .collect();
        let border = world.add_crew("border", &["10.0.0.1".parse().unwrap()], members);
        let caller = world.add_engine(
            "caller",
            &["10.0.0.2".parse().unwrap()],
            Peer::new("10.0.0.2", 16, silent),
        );
        let phone = world.add_engine(
            "phone",
            &["10.0.0.3".parse().unwrap()],
            Peer::new("10.0.0.3", 1, answers),
        );
        let mut bench = Bench {
            world,
            border,
            caller,
            phone,
        };
        bench.pass(10);
        bench
    }

    fn pass(&mut self, milliseconds: u64) {
        let until = self.world.now() + Duration::from_millis(milliseconds);
        self.world.run_until(until);
    }

    fn say(&mut self, host: HostId, said: Said) {
        self.world
            .with_engine(host, |peer: &mut Peer, _| peer.out.push_back(said))
            .unwrap();
        self.pass(20);
    }

    fn send(&mut self, host: HostId, port: usize, text: &str) {
        let to = BORDER.parse().unwrap();
        self.say(host, Said::Datagram(port, to, text.to_owned()));
    }

    fn heard(&mut self, host: HostId) -> Vec<(Way, String)> {
        self.world
            .with_engine(host, |peer: &mut Peer, _| std::mem::take(&mut peer.heard))
            .unwrap()
    }

    /// The last message of those heard that begins so.
    fn last(heard: &[(Way, String)], start: &str) -> (Way, String) {
        let found = heard.iter().rev().find(|(_, text)| text.starts_with(start));
        found
            .cloned()
            .unwrap_or_else(|| panic!("no {start} in {heard:#?}"))
    }

    /// Calls at each worker.
    fn calls(&mut self) -> Vec<usize> {
        let border = self.border;
        let calls = |border: &mut Border, _: &mut Forwarder, _| border.calls().len();
        (0..usize::from(WORKERS))
            .filter_map(|at| self.world.with_member(border, at, calls))
            .collect()
    }

    fn carried(&mut self) -> u64 {
        self.world
            .carried::<Border, Forwarder>(self.border)
            .unwrap()
    }

    fn register(&mut self, way: Way) {
        let transport = match way {
            Way::Port(_) => "UDP",
            Way::Stream(_) => "TCP",
        };
        let text = format!(
            "REGISTER sip:10.0.0.1 SIP/2.0\r\nVia: SIP/2.0/{transport} 10.0.0.3:6000;branch=z9hG4bKr1\r\nFrom: <sip:1000@10.0.0.1>;tag=r\r\nTo: <sip:1000@10.0.0.1>\r\nCall-ID: registration\r\nCSeq: 1 REGISTER\r\nContact: <sip:1000@10.0.0.3:6000;transport={}>\r\nExpires: 600\r\nContent-Length: 0\r\n\r\n",
            transport.to_lowercase()
        );
        match way {
            Way::Port(port) => self.send(self.phone, port, &text),
            Way::Stream(stream) => {
                self.say(self.phone, Said::Connect(stream, BORDER.parse().unwrap()));
                self.say(self.phone, Said::Stream(stream, text));
            }
        }
        let heard = self.heard(self.phone);
        assert_eq!(Bench::last(&heard, "SIP/2.0 200").0, way);
    }

    /// What the border says at last to a request that is sent from `port`.
    fn ask(&mut self, port: usize, text: &str) -> String {
        self.send(self.caller, port, text);
        let heard = self.heard(self.caller);
        Bench::last(&heard, "SIP/2.0 ").1
    }
}

fn invite(call: usize) -> String {
    format!(
        "INVITE sip:1000@10.0.0.1 SIP/2.0\r\nVia: SIP/2.0/UDP 10.0.0.2:6000;branch=z9hG4bKi{call};rport\r\nFrom: <sip:2000@10.0.0.2>;tag=c{call}\r\nTo: <sip:1000@10.0.0.1>\r\nCall-ID: call-{call}\r\nCSeq: 1 INVITE\r\nMax-Forwards: 70\r\nContact: <sip:2000@10.0.0.2:6000>\r\nContent-Length: 0\r\n\r\n"
    )
}

/// A request of the caller's dialog.
fn inside(method: &str, call: usize, number: u32, to: &str) -> String {
    format!(
        "{method} sip:10.0.0.1:5060 SIP/2.0\r\nVia: SIP/2.0/UDP 10.0.0.2:6000;branch=z9hG4bK{method}{call};rport\r\nFrom: <sip:2000@10.0.0.2>;tag=c{call}\r\nTo: {to}\r\nCall-ID: call-{call}\r\nCSeq: {number} {method}\r\nMax-Forwards: 70\r\nContent-Length: 0\r\n\r\n"
    )
}

fn to_of(text: &str) -> String {
    let line = text.lines().find_map(|line| line.strip_prefix("To: "));
    line.unwrap().to_owned()
}

/// Calls to a registered user, each message from another port: whichever worker gets it, the call is one worker's.
fn calls_reach_a_registered_user(way: Way) {
    let mut bench = Bench::new(answering);
    bench.register(way);
    let mut owners = vec![0; usize::from(WORKERS)];
    for call in 0..12 {
        bench.send(bench.caller, call % 16, &invite(call));
        let heard = bench.heard(bench.caller);
        let (_, answer) = Bench::last(&heard, "SIP/2.0 200");
        let to = to_of(&answer);
        bench.send(bench.caller, (call + 5) % 16, &inside("ACK", call, 1, &to));
        let asked = bench.heard(bench.phone);
        assert_eq!(Bench::last(&asked, "INVITE").0, way);
        assert!(
            asked.iter().any(|(_, text)| text.starts_with("ACK")),
            "{asked:#?}"
        );
        for (owner, calls) in owners.iter_mut().zip(bench.calls()) {
            *owner += calls;
        }
        let bye = bench.ask((call + 11) % 16, &inside("BYE", call, 2, &to));
        assert!(bye.starts_with("SIP/2.0 200"), "{bye}");
        assert_eq!(bench.calls(), [0, 0, 0]);
        let asked = bench.heard(bench.phone);
        assert_eq!(Bench::last(&asked, "BYE").0, way);
    }
    assert!(owners.iter().all(|calls| *calls > 0), "{owners:?}");
    assert_eq!(owners.iter().sum::<usize>(), 12);
    assert!(bench.carried() > 30, "{}", bench.carried());
}

#[test]
fn a_call_reaches_a_user_who_registered_at_another_worker() {
    calls_reach_a_registered_user(Way::Port(0));
}

#[test]
fn a_call_reaches_a_user_whose_connection_another_worker_holds() {
    calls_reach_a_registered_user(Way::Stream(1));
}

#[test]
fn a_cancel_by_another_way_ends_the_call_that_it_means() {
    let mut bench = Bench::new(ringing);
    bench.register(Way::Port(0));
    for call in 0..6 {
        bench.send(bench.caller, call, &invite(call));
        assert_eq!(bench.calls().iter().sum::<usize>(), 1);
        // The same again is a repetition, also by another way.
        bench.send(bench.caller, call + 4, &invite(call));
        assert_eq!(bench.calls().iter().sum::<usize>(), 1);
        let branch = format!("z9hG4bKi{call}");
        let cancel = inside("CANCEL", call, 1, "<sip:1000@10.0.0.1>")
            .replace(&format!("z9hG4bKCANCEL{call}"), &branch);
        bench.send(bench.caller, call + 9, &cancel);
        let heard = bench.heard(bench.caller);
        let (_, refusal) = Bench::last(&heard, "SIP/2.0 487");
        let ack =
            inside("ACK", call, 1, &to_of(&refusal)).replace(&format!("z9hG4bKACK{call}"), &branch);
        bench.send(bench.caller, call + 2, &ack);
        bench.pass(1_000);
        let heard = bench.heard(bench.caller);
        assert!(
            heard
                .iter()
                .all(|(_, text)| !text.starts_with("SIP/2.0 487")),
            "{heard:#?}"
        );
        assert!(
            bench
                .heard(bench.phone)
                .iter()
                .any(|(_, text)| text.starts_with("CANCEL"))
        );
        assert_eq!(bench.calls(), [0, 0, 0]);
    }
}

/// A connection that ends takes the registrations with it, wherever they are kept, and who still used it is told.
#[test]
fn a_connection_that_ended_is_known_to_all() {
    let mut bench = Bench::new(answering);
    bench.register(Way::Stream(1));
    let fault = sim::Fault::Reset(bench.phone);
    bench.world.plan(bench.world.now(), fault);
    bench.pass(100);
    for call in 0..6 {
        let answer = bench.ask(call, &invite(call));
        assert!(answer.starts_with("SIP/2.0 4"), "{answer}");
        bench.send(
            bench.caller,
            call + 1,
            &inside("ACK", call, 1, &to_of(&answer))
                .replace(&format!("z9hG4bKACK{call}"), &format!("z9hG4bKi{call}")),
        );
    }
    assert_eq!(bench.calls(), [0, 0, 0]);
}

/// What a rate or a limit lets in it lets in once, not once for each worker.
#[test]
fn rates_and_limits_hold_across_workers() {
    let rates = CONFIG.replace("[sip]", "rates = { calls = 10, status = 486 }\n[sip]");
    let limits = format!("{CONFIG}[limits]\ncalls = 4\n");
    for (config, let_in) in [(rates, 2), (limits, 4)] {
        let mut bench = Bench::with(&config, ringing);
        bench.register(Way::Port(0));
        let to: SocketAddr = BORDER.parse().unwrap();
        bench
            .world
            .with_engine(bench.caller, |peer: &mut Peer, _| {
                for call in 0..30 {
                    peer.out
                        .push_back(Said::Datagram(call % 16, to, invite(call)));
                }
            })
            .unwrap();
        bench.pass(50);
        let calls = bench.calls();
        assert_eq!(calls.iter().sum::<usize>(), let_in, "{calls:?}");
    }
}

/// Mixed calls and registrations over a network with faults: nothing is left half open at any worker.
#[test]
fn storms_leave_nothing_behind_with_several_workers() {
    let text = include_str!("../../../../scenarios/small-network.toml");
    let seeds = std::env::var("SEEDS")
        .ok()
        .and_then(|text| text.parse().ok());
    for seed in 0..seeds.unwrap_or(10u64) {
        let set = [
            format!("subject.workers={}", 2 + seed % 3),
            "callers.seconds=8.0".to_owned(),
        ];
        let file = File::parse_with("small-network", text, &set).unwrap();
        let trial = Trial {
            experiment: file.levels().unwrap().remove(0).experiment,
            number: 0,
            seed,
        };
        let (one, two) = (simulate(&trial).unwrap(), simulate(&trial).unwrap());
        assert_eq!(one.leaks, Some(0), "seed {seed}: {:?}", one.remarks);
        assert_eq!(one.digest, two.digest, "the same seed gives the same bytes");
        let good = |a: &&lab::record::Attempt| a.outcome == Outcome::Completed;
        let completed = one.attempts.iter().filter(good).count();
        assert!(
            completed * 2 > one.attempts.len(),
            "seed {seed}: {completed}"
        );
    }
}
