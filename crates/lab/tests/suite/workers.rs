//! Several workers of one border on one host: a message that arrives at any worker reaches the one that owns its call.

use border::border::Border;
use engine::{ConnectionId, Engine, HashKey, Input, Output, SocketId, SocketKind, Time};
use lab::experiment::File;
use lab::record::AttemptOutcome;
use lab::trial::{Trial, simulate};
use media::forward::{Forwarder, ForwarderLimits};
use sim::{HostId, World};
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// A scripted peer: it sends given messages, and records those that it receives.
struct ScriptedPeer {
    ports: Vec<SocketAddr>,
    queue: VecDeque<Action>,
    action: Option<Action>,
    received: Vec<(Path, String)>,
    /// An incomplete message.
    partial: String,
    /// Responses to a received request; may be empty.
    answers: fn(&str) -> Vec<String>,
}

/// Path of a message: a port of the peer, or one of its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Path {
    Port(usize),
    Stream(u64),
}

enum Action {
    Open(usize),
    Datagram(usize, SocketAddr, String),
    Connect(u64, SocketAddr),
    Stream(u64, String),
}

impl ScriptedPeer {
    fn new(ip: &str, ports: usize, answers: fn(&str) -> Vec<String>) -> ScriptedPeer {
        let ip: IpAddr = ip.parse().unwrap();
        ScriptedPeer {
            ports: (0..ports)
                .map(|at| SocketAddr::new(ip, 6_000 + at as u16))
                .collect(),
            queue: (0..ports).map(Action::Open).collect(),
            action: None,
            received: Vec::new(),
            partial: String::new(),
            answers,
        }
    }

    fn receive(&mut self, path: Path, from: Option<SocketAddr>, text: &str) {
        for answer in (self.answers)(text) {
            self.queue.push_back(match (path, from) {
                (Path::Port(at), Some(to)) => Action::Datagram(at, to, answer),
                (Path::Stream(stream), _) => Action::Stream(stream, answer),
                _ => continue,
            });
        }
        self.received.push((path, text.to_owned()));
    }
}

impl Engine for ScriptedPeer {
    fn handle(&mut self, input: Input<'_>, _now: Time) {
        match input {
            Input::Datagram(datagram) => {
                let text = String::from_utf8_lossy(datagram.bytes).into_owned();
                let path = Path::Port(datagram.socket.0 as usize);
                self.receive(path, Some(datagram.source), &text);
            }
            Input::Stream { connection, bytes } => {
                self.partial.push_str(&String::from_utf8_lossy(bytes));
                // No message here has a body.
                while let Some(end) = self.partial.find("\r\n\r\n") {
                    let rest = self.partial.split_off(end + 4);
                    let text = std::mem::replace(&mut self.partial, rest);
                    self.receive(Path::Stream(connection.0), None, &text);
                }
            }
            _ => {}
        }
    }

    fn next_output(&mut self) -> Option<Output<'_>> {
        self.action = self.queue.pop_front();
        Some(match self.action.as_ref()? {
            Action::Open(at) => Output::OpenSocket {
                socket: SocketId(*at as u32),
                kind: SocketKind::UdpSignalling,
                local: self.ports[*at],
            },
            Action::Datagram(at, to, text) => Output::Datagram {
                socket: SocketId(*at as u32),
                destination: *to,
                bytes: text.as_bytes(),
            },
            Action::Connect(stream, to) => Output::Connect {
                connection: ConnectionId(*stream),
                local: None,
                remote: *to,
                tls: None,
                websocket: false,
            },
            Action::Stream(stream, text) => Output::Stream {
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

/// A response to a request, with the headers that its transaction requires.
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

/// A phone that answers every call.
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
        let members = Border::worker_pool(config, WORKERS, entropy)
            .into_iter()
            .map(|border| (border, Forwarder::new(ForwarderLimits::default(), key)))
            .collect();
        let border = world.add_workers("border", &["10.0.0.1".parse().unwrap()], members);
        let caller = world.add_engine(
            "caller",
            &["10.0.0.2".parse().unwrap()],
            ScriptedPeer::new("10.0.0.2", 16, silent),
        );
        let phone = world.add_engine(
            "phone",
            &["10.0.0.3".parse().unwrap()],
            ScriptedPeer::new("10.0.0.3", 1, answers),
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

    fn queue(&mut self, host: HostId, action: Action) {
        self.world
            .with_engine(host, |peer: &mut ScriptedPeer, _| {
                peer.queue.push_back(action)
            })
            .unwrap();
        self.pass(20);
    }

    fn send(&mut self, host: HostId, port: usize, text: &str) {
        let to = BORDER.parse().unwrap();
        self.queue(host, Action::Datagram(port, to, text.to_owned()));
    }

    fn take_received(&mut self, host: HostId) -> Vec<(Path, String)> {
        self.world
            .with_engine(host, |peer: &mut ScriptedPeer, _| {
                std::mem::take(&mut peer.received)
            })
            .unwrap()
    }

    /// The last received message that begins with `start`.
    fn last(received: &[(Path, String)], start: &str) -> (Path, String) {
        let found = received
            .iter()
            .rev()
            .find(|(_, text)| text.starts_with(start));
        found
            .cloned()
            .unwrap_or_else(|| panic!("no {start} in {received:#?}"))
    }

    /// Calls at each worker.
    fn calls(&mut self) -> Vec<usize> {
        let border = self.border;
        let calls = |border: &mut Border, _: &mut Forwarder, _| border.calls().len();
        (0..usize::from(WORKERS))
            .filter_map(|at| self.world.with_worker(border, at, calls))
            .collect()
    }

    fn handoffs(&mut self) -> u64 {
        self.world
            .handoffs::<Border, Forwarder>(self.border)
            .unwrap()
    }

    fn register(&mut self, path: Path) {
        let transport = match path {
            Path::Port(_) => "UDP",
            Path::Stream(_) => "TCP",
        };
        let text = format!(
            "REGISTER sip:10.0.0.1 SIP/2.0\r\nVia: SIP/2.0/{transport} 10.0.0.3:6000;branch=z9hG4bKr1\r\nFrom: <sip:1000@10.0.0.1>;tag=r\r\nTo: <sip:1000@10.0.0.1>\r\nCall-ID: registration\r\nCSeq: 1 REGISTER\r\nContact: <sip:1000@10.0.0.3:6000;transport={}>\r\nExpires: 600\r\nContent-Length: 0\r\n\r\n",
            transport.to_lowercase()
        );
        match path {
            Path::Port(port) => self.send(self.phone, port, &text),
            Path::Stream(stream) => {
                self.queue(self.phone, Action::Connect(stream, BORDER.parse().unwrap()));
                self.queue(self.phone, Action::Stream(stream, text));
            }
        }
        let received = self.take_received(self.phone);
        assert_eq!(Bench::last(&received, "SIP/2.0 200").0, path);
    }

    /// The border's final response to a request that is sent from `port`.
    fn ask(&mut self, port: usize, text: &str) -> String {
        self.send(self.caller, port, text);
        let received = self.take_received(self.caller);
        Bench::last(&received, "SIP/2.0 ").1
    }
}

fn invite(call: usize) -> String {
    format!(
        "INVITE sip:1000@10.0.0.1 SIP/2.0\r\nVia: SIP/2.0/UDP 10.0.0.2:6000;branch=z9hG4bKi{call};rport\r\nFrom: <sip:2000@10.0.0.2>;tag=c{call}\r\nTo: <sip:1000@10.0.0.1>\r\nCall-ID: call-{call}\r\nCSeq: 1 INVITE\r\nMax-Forwards: 70\r\nContact: <sip:2000@10.0.0.2:6000>\r\nContent-Length: 0\r\n\r\n"
    )
}

/// A request within the caller's dialog.
fn in_dialog_request(method: &str, call: usize, number: u32, to: &str) -> String {
    format!(
        "{method} sip:10.0.0.1:5060 SIP/2.0\r\nVia: SIP/2.0/UDP 10.0.0.2:6000;branch=z9hG4bK{method}{call};rport\r\nFrom: <sip:2000@10.0.0.2>;tag=c{call}\r\nTo: {to}\r\nCall-ID: call-{call}\r\nCSeq: {number} {method}\r\nMax-Forwards: 70\r\nContent-Length: 0\r\n\r\n"
    )
}

fn to_header(text: &str) -> String {
    let line = text.lines().find_map(|line| line.strip_prefix("To: "));
    line.unwrap().to_owned()
}

/// Calls to a registered user, each message from another port: all messages of a call reach the same worker.
fn calls_reach_a_registered_user(path: Path) {
    let mut bench = Bench::new(answering);
    bench.register(path);
    let mut owners = vec![0; usize::from(WORKERS)];
    for call in 0..12 {
        bench.send(bench.caller, call % 16, &invite(call));
        let received = bench.take_received(bench.caller);
        let (_, answer) = Bench::last(&received, "SIP/2.0 200");
        let to = to_header(&answer);
        bench.send(
            bench.caller,
            (call + 5) % 16,
            &in_dialog_request("ACK", call, 1, &to),
        );
        let requests = bench.take_received(bench.phone);
        assert_eq!(Bench::last(&requests, "INVITE").0, path);
        assert!(
            requests.iter().any(|(_, text)| text.starts_with("ACK")),
            "{requests:#?}"
        );
        for (owner, calls) in owners.iter_mut().zip(bench.calls()) {
            *owner += calls;
        }
        let bye = bench.ask((call + 11) % 16, &in_dialog_request("BYE", call, 2, &to));
        assert!(bye.starts_with("SIP/2.0 200"), "{bye}");
        assert_eq!(bench.calls(), [0, 0, 0]);
        let requests = bench.take_received(bench.phone);
        assert_eq!(Bench::last(&requests, "BYE").0, path);
    }
    assert!(owners.iter().all(|calls| *calls > 0), "{owners:?}");
    assert_eq!(owners.iter().sum::<usize>(), 12);
    assert!(bench.handoffs() > 30, "{}", bench.handoffs());
}

#[test]
fn call_reaches_user_registered_at_another_worker() {
    calls_reach_a_registered_user(Path::Port(0));
}

#[test]
fn call_reaches_user_whose_connection_another_worker_has() {
    calls_reach_a_registered_user(Path::Stream(1));
}

#[test]
fn cancel_over_another_path_ends_its_call() {
    let mut bench = Bench::new(ringing);
    bench.register(Path::Port(0));
    for call in 0..6 {
        bench.send(bench.caller, call, &invite(call));
        assert_eq!(bench.calls().iter().sum::<usize>(), 1);
        // The same INVITE is a retransmission, also over another path.
        bench.send(bench.caller, call + 4, &invite(call));
        assert_eq!(bench.calls().iter().sum::<usize>(), 1);
        let branch = format!("z9hG4bKi{call}");
        let cancel = in_dialog_request("CANCEL", call, 1, "<sip:1000@10.0.0.1>")
            .replace(&format!("z9hG4bKCANCEL{call}"), &branch);
        bench.send(bench.caller, call + 9, &cancel);
        let received = bench.take_received(bench.caller);
        let (_, refusal) = Bench::last(&received, "SIP/2.0 487");
        let ack = in_dialog_request("ACK", call, 1, &to_header(&refusal))
            .replace(&format!("z9hG4bKACK{call}"), &branch);
        bench.send(bench.caller, call + 2, &ack);
        bench.pass(1_000);
        let received = bench.take_received(bench.caller);
        assert!(
            received
                .iter()
                .all(|(_, text)| !text.starts_with("SIP/2.0 487")),
            "{received:#?}"
        );
        assert!(
            bench
                .take_received(bench.phone)
                .iter()
                .any(|(_, text)| text.starts_with("CANCEL"))
        );
        assert_eq!(bench.calls(), [0, 0, 0]);
    }
}

/// The end of a connection removes the registrations over it at all workers, and ends the calls that use it.
#[test]
fn end_of_connection_is_handled_by_all_workers() {
    let mut bench = Bench::new(answering);
    bench.register(Path::Stream(1));
    let fault = sim::Fault::Reset(bench.phone);
    bench.world.plan(bench.world.now(), fault);
    bench.pass(100);
    for call in 0..6 {
        let answer = bench.ask(call, &invite(call));
        assert!(answer.starts_with("SIP/2.0 4"), "{answer}");
        bench.send(
            bench.caller,
            call + 1,
            &in_dialog_request("ACK", call, 1, &to_header(&answer))
                .replace(&format!("z9hG4bKACK{call}"), &format!("z9hG4bKi{call}")),
        );
    }
    assert_eq!(bench.calls(), [0, 0, 0]);
}

/// Rates and limits apply to all workers together, not to each.
#[test]
fn rates_and_limits_hold_across_workers() {
    let rates = CONFIG.replace(
        "[sip]",
        "rate_limits = { calls_per_s = 10, status = 486 }\n[sip]",
    );
    let limits = format!("{CONFIG}[limits]\ncalls = 4\n");
    for (config, let_in) in [(rates, 2), (limits, 4)] {
        let mut bench = Bench::with(&config, ringing);
        bench.register(Path::Port(0));
        let to: SocketAddr = BORDER.parse().unwrap();
        bench
            .world
            .with_engine(bench.caller, |peer: &mut ScriptedPeer, _| {
                for call in 0..30 {
                    peer.queue
                        .push_back(Action::Datagram(call % 16, to, invite(call)));
                }
            })
            .unwrap();
        bench.pass(50);
        let calls = bench.calls();
        assert_eq!(calls.iter().sum::<usize>(), let_in, "{calls:?}");
    }
}

/// Mixed calls and registrations over a network with faults: no worker has half-open objects left.
#[test]
fn lossy_network_leaves_nothing_behind_with_several_workers() {
    let text = include_str!("../../../../scenarios/small-network.toml");
    let seeds = std::env::var("SEEDS")
        .ok()
        .and_then(|text| text.parse().ok());
    for seed in 0..seeds.unwrap_or(10u64) {
        let set = [
            format!("sut.workers={}", 2 + seed % 3),
            "callers.duration_seconds=8.0".to_owned(),
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
        let good = |a: &&lab::record::Attempt| a.outcome == AttemptOutcome::Completed;
        let completed = one.attempts.iter().filter(good).count();
        assert!(
            completed * 2 > one.attempts.len(),
            "seed {seed}: {completed}"
        );
    }
}
