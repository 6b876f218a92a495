//! Trunks that are identified by the TLS certificates with which they connect (RFC 5922), with one worker or several.

use crate::virtual_network;

use border::admission::Price;
use border::border::Border;
use engine::{
    ConnectionId, DropReason, Engine, Entropy, HandoffMessage, Input, Output, SocketId, Time,
    Transport,
};
use sip::{Ending, MessageContent};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;
use virtual_network::*;
use wire::sip::{Edit, HeaderId};

const CONFIG: &str = r#"
[[interface]]
name = "outside"
listen = "tls:192.0.2.1:5061"
allow = "10.0.0.0/8"
tls = { certificate = { chain = "c.pem", key = "c.key" }, clients = "request", client_ca = "ca.pem" }
[[trunk]]
name = "carrier"
target = "tls:203.0.113.9"
sources = "10.9.0.0/16"
tls = { client_names = ["SIP.carrier.example", "backup.carrier.example"] }
[[trunk]]
name = "pbx"
target = "tls:10.7.0.1"
[[route]]
from_trunk = "carrier"
reject = 410
[[route]]
from_trunk = "pbx"
reject = 413
[[route]]
reject = 404
"#;

/// The workers of a border; handoff messages are delivered at once.
struct WorkerRig {
    members: Vec<Border>,
    sockets: Vec<SocketId>,
    connections: u64,
    now: Time,
    said: VecDeque<(ConnectionId, String)>,
    closed: Vec<ConnectionId>,
    handed_off: usize,
}

impl WorkerRig {
    fn new(workers: u8) -> WorkerRig {
        let text = format!("{CONFIG}[sip]\nworkers = {workers}\n");
        let config = config::parse(&text, "t").unwrap_or_else(|mistakes| {
            let text: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
            panic!("{}", text.join("\n"))
        });
        let mut edge = WorkerRig {
            members: Border::worker_pool(config, workers, Entropy::from_number(3)),
            sockets: vec![SocketId(0); usize::from(workers)],
            connections: 0,
            now: Time::from_millis(1),
            said: VecDeque::new(),
            closed: Vec::new(),
            handed_off: 0,
        };
        for member in 0..edge.members.len() {
            edge.feed(member, Input::Timeout);
            let socket = edge.sockets[member];
            let local = "192.0.2.1:5061".parse().unwrap();
            edge.feed(member, Input::Opened { socket, local });
        }
        edge
    }

    fn feed(&mut self, member: usize, input: Input<'_>) {
        self.members[member].handle(input, self.now);
        let mut handoffs = VecDeque::new();
        let mut at = member;
        loop {
            while let Some(output) = self.members[at].next_output() {
                match output {
                    Output::OpenSocket { socket, .. } => self.sockets[at] = socket,
                    Output::Stream { connection, bytes } => {
                        let text = String::from_utf8_lossy(bytes).into_owned();
                        self.said.push_back((connection, text));
                    }
                    Output::Close { connection } => self.closed.push(connection),
                    Output::HandOff {
                        worker,
                        message: handoff,
                    } => {
                        handoffs.push_back((worker, handoff.kind, handoff.bytes.to_vec()));
                    }
                    _ => {}
                }
            }
            let Some((worker, head, bytes)) = handoffs.pop_front() else {
                return;
            };
            self.handed_off += 1;
            at = usize::from(worker);
            let handoff = HandoffMessage {
                kind: head,
                bytes: &bytes,
            };
            self.members[at].handle(Input::Handoff(handoff), self.now);
        }
    }

    /// A connection from `remote` to a worker, with a client certificate for these names.
    fn connect(&mut self, member: usize, remote: &str, names: &[&str]) -> ConnectionId {
        self.connections += 1;
        let id = ConnectionId::ACCEPTED | ConnectionId::of_worker(member as u8) | self.connections;
        let (connection, socket) = (ConnectionId(id), self.sockets[member]);
        let remote: SocketAddr = remote.parse().unwrap();
        let local = "192.0.2.1:5061".parse().unwrap();
        self.feed(
            member,
            Input::Accepted {
                connection,
                socket,
                local,
                remote,
            },
        );
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        if !self.closed.contains(&connection) {
            let names = &names;
            self.feed(member, Input::Secured { connection, names });
        }
        connection
    }

    /// Status of a call on a connection; `None` without a response.
    fn call(&mut self, member: usize, connection: ConnectionId, call: u32) -> Option<String> {
        if self.closed.contains(&connection) {
            return None;
        }
        let text = format!(
            "INVITE sip:1@192.0.2.1 SIP/2.0\r\nVia: SIP/2.0/TLS 10.1.1.1;branch=z9hG4bK{call}\r\nFrom: <sip:a@b>;tag=1\r\nTo: <sip:1@c>\r\nCall-ID: {call}\r\nCSeq: 1 INVITE\r\nMax-Forwards: 70\r\nContact: <sip:a@10.1.1.1>\r\nContent-Length: 0\r\n\r\n"
        );
        let bytes = text.as_bytes();
        self.feed(member, Input::Stream { connection, bytes });
        let final_one = self.said.drain(..).find(|(at, text)| {
            *at == connection && text.starts_with("SIP/2.0 ") && !text.starts_with("SIP/2.0 1")
        });
        final_one.map(|(_, text)| text[8..11].to_owned())
    }
}

#[test]
fn trunk_is_identified_by_its_certificate_alone() {
    for workers in [1, 3] {
        let mut edge = WorkerRig::new(workers);
        let mut call = 0;
        for (remote, names, status) in [
            // From any address, which other peers would not be accepted from.
            (
                "198.51.100.7:4000",
                &["sip.carrier.example"][..],
                Some("410"),
            ),
            (
                "10.1.1.1:4000",
                &["x.example", "backup.carrier.example"],
                Some("410"),
            ),
            // Its addresses do not identify it any more, neither targets nor sources.
            ("203.0.113.9:4000", &[], None),
            ("203.0.113.9:4001", &["other.example"], None),
            ("10.9.1.1:4000", &[], Some("404")),
            // Names must match completely, not as suffixes.
            ("10.1.1.2:4000", &["sub.sip.carrier.example"], Some("404")),
            ("198.51.100.7:4001", &["carrier.example"], None),
            // A trunk that is identified by its address remains so with a certificate.
            ("10.7.0.1:4000", &[], Some("413")),
            ("10.7.0.1:4001", &["other.example"], Some("413")),
        ] {
            for member in 0..usize::from(workers) {
                let connection = edge.connect(member, remote, names);
                // Calls on one connection belong to several workers.
                for _ in 0..6 {
                    call += 1;
                    let answered = edge.call(member, connection, call);
                    assert_eq!(answered.as_deref(), status, "{workers} {remote} {names:?}");
                }
            }
        }
        assert_eq!(edge.handed_off > 0, workers > 1);
        let dropped: u64 = edge
            .members
            .iter()
            .map(|member| member.drops().get(DropReason::SipSourceNotAllowed))
            .sum();
        assert_eq!(dropped, 3 * u64::from(workers));
    }
}

/// The identification ends with the connection; another connection with the same number has none.
#[test]
fn certificate_identity_ends_with_the_connection() {
    let mut edge = WorkerRig::new(1);
    let connection = edge.connect(0, "10.1.1.1:4000", &["sip.carrier.example"]);
    assert_eq!(edge.call(0, connection, 1).as_deref(), Some("410"));
    let why = engine::CloseReason::Peer;
    edge.feed(
        0,
        Input::Closed {
            connection,
            reason: why,
        },
    );
    edge.connections -= 1;
    let again = edge.connect(0, "10.1.1.1:4001", &[]);
    assert_eq!(again, connection);
    assert_eq!(edge.call(0, again, 2).as_deref(), Some("404"));
}

/// A TLS handshake counts as CPU time for a second.
#[test]
fn handshakes_count_as_cpu_time_for_a_second() {
    let mut edge = WorkerRig::new(1);
    let taken = |edge: &mut WorkerRig| {
        let now = edge.now;
        let all = edge.members[0].taken(now);
        all.iter().map(|(_, cost)| cost.processor).sum::<u64>()
    };
    assert_eq!(taken(&mut edge), 0);
    for port in 1..=3 {
        edge.connect(0, &format!("10.1.1.1:{port}"), &[]);
    }
    assert_eq!(taken(&mut edge), 3 * Price::TLS_HANDSHAKE.processor);
    edge.now += std::time::Duration::from_secs(1);
    assert_eq!(taken(&mut edge), 0);
}

/// A PBX that connects by TLS, and a phone that it calls.
const CALLING_PBX: &str = "[[interface]]\nname='out'\nkind='access'\nlisten='udp:192.0.2.1:5060'\nmedia={address='192.0.2.1'}\n\
    [[interface]]\nname='in'\nkind='core'\nlisten=['udp:198.51.100.1:5060','tls:198.51.100.1:5061']\nmedia={address='198.51.100.1'}\n\
    tls={certificate={chain='c.pem',key='c.key'}}\n\
    [[trunk]]\nname='pbx'\ninterface='in'\ntarget='tls:10.2.0.1:5061'\ntls={name='pbx.example'}\n\
    [[trunk]]\nname='phones'\ninterface='out'\ntarget='udp:10.1.0.1:5060'\n\
    [dns]\nservers=['10.8.0.53:53']\n";

/// Requests of the called phone reach a PBX that has connected by TLS: on its connection, otherwise on a new one, which
/// requires the certificate of its trunk or of the name in its Contact (RFC 5922 section 7.3).
#[test]
fn requests_to_a_tls_peer_use_its_connection_or_its_name() {
    let named = |name: &str| (name.to_owned(), "pbx".to_owned());
    let opened = |remote: &str, name: &str| (0, remote.parse().unwrap(), named(name));
    let address = "<sip:bob@10.2.0.1:5061;transport=tls>";
    let host = "<sip:bob@edge.example:5061;transport=tls>";
    for (contact, resolved, breaks, expected) in [
        (address, 1, false, None),
        (
            address,
            1,
            true,
            Some(opened("10.2.0.1:5061", "pbx.example")),
        ),
        (host, 1, false, None),
        (host, 1, true, Some(opened("10.2.0.1:5061", "pbx.example"))),
        (
            host,
            7,
            false,
            Some(opened("10.2.0.7:5061", "edge.example")),
        ),
    ] {
        let mut net = VirtualNetwork::new(CALLING_PBX, 1);
        net.zone = vec![("edge.example", 1, vec![10, 2, 0, resolved])];
        let alice = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
        let pbx = ("10.2.0.1:5061", Transport::Tls);
        let bob = net.phone_with(pbx, PhoneBehaviour::answering(SDP_B), |_| {});
        let edits = [Edit::Replace {
            id: HeaderId::Contact,
            value: contact.as_bytes(),
        }];
        let content = MessageContent::sdp(SDP_B.as_bytes()).with(&edits);
        let (uri, hop) = ("sip:alice@198.51.100.1", "198.51.100.1:5061");
        net.call_with(bob, uri, hop, &content, |invite| {
            invite.target.flow.transport = Transport::Tls;
        });
        net.run(Duration::from_secs(1));
        assert!(net.has(bob, |event| *event == PhoneEvent::Answered));
        if breaks {
            net.break_streams(bob);
            net.run(Duration::from_secs(1));
        }
        let leg = net.find(alice, |event| *event == PhoneEvent::Offered).leg;
        net.command(alice, |endpoint, now| {
            let nothing = MessageContent::default();
            endpoint.bye(leg.unwrap(), &nothing, now).unwrap();
        });
        net.run(Duration::from_secs(1));
        let ended = net.has(bob, |event| *event == PhoneEvent::Ended(Ending::Peer));
        assert_eq!(ended, resolved == 1, "{contact} {breaks}");
        // A BYE whose connection fails is sent once more.
        let attempts = if resolved == 1 { 1 } else { 2 };
        let connections: Vec<_> = expected
            .into_iter()
            .flat_map(|opened| std::iter::repeat_n(opened, attempts))
            .collect();
        assert_eq!(
            net.tls_connections, connections,
            "{contact} {resolved} {breaks}"
        );
    }
}
