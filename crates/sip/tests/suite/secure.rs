//! TLS and WebSocket in an endpoint: verified peers of a connection, messages that it may carry, written headers.

use crate::common;

use common::{Host, RecordedIndication};
use engine::{CloseReason, ConnectionId, DropReason, Input, Output, SocketId, Time, Transport};
use sip::{
    EndpointConfig, Flow, Invite, KnownPeer, ListenerConfig, ListenerId, OutOfDialogRequest,
    Refused, Target,
};
use std::net::SocketAddr;
use wire::sip::Method;

const SERVER: &str = "192.0.2.9:5061";

/// A host that also listens with TLS (socket 3) and secure WebSocket (socket 4).
struct Rig {
    host: Host,
    tls: ListenerId,
    accepted: u64,
}

#[derive(Debug, PartialEq)]
enum Out {
    Connect(ConnectionId, SocketAddr, Option<(String, String)>),
    /// With a WebSocket in it.
    ConnectWeb(ConnectionId, SocketAddr, Option<(String, String)>),
    Stream(ConnectionId, String),
    Close(ConnectionId),
}

impl Rig {
    fn new() -> Rig {
        Rig::with(EndpointConfig::default())
    }

    fn with(config: EndpointConfig) -> Rig {
        let mut host = Host::new("192.0.2.1:5060", config, 7);
        let mut add = |socket, transport, port| {
            host.endpoint.add_listener(ListenerConfig {
                name: String::from("secure"),
                socket: SocketId(socket),
                transport,
                address: SocketAddr::new([192, 0, 2, 1].into(), port),
                advertised: String::new(),
            })
        };
        let tls = add(3, Transport::Tls, 5061);
        add(4, Transport::Wss, 443);
        Rig {
            host,
            tls,
            accepted: 0,
        }
    }

    fn drain(&mut self) -> Vec<Out> {
        let mut all = Vec::new();
        while let Some(output) = self.host.endpoint.next_output() {
            all.push(match output {
                Output::Connect {
                    connection,
                    remote,
                    tls: secure,
                    websocket,
                    ..
                } => {
                    let secure = secure.map(|s| (s.server_name.to_owned(), s.profile.to_owned()));
                    match websocket {
                        false => Out::Connect(connection, remote, secure),
                        true => Out::ConnectWeb(connection, remote, secure),
                    }
                }
                Output::Stream { connection, bytes } => {
                    Out::Stream(connection, String::from_utf8(bytes.to_vec()).unwrap())
                }
                Output::Close { connection } => Out::Close(connection),
                other => panic!("{other:?}"),
            });
        }
        all
    }

    fn flow(&mut self, remote: &str, name: Option<(&str, &str)>) -> Flow {
        let peer = |(name, profile)| self.host.endpoint.peer(name, profile).unwrap();
        Flow {
            connection: name.map(peer),
            local: self.tls,
            transport: Transport::Tls,
            remote: remote.parse().unwrap(),
        }
    }

    /// Sends OPTIONS; returns the outputs.
    fn options(&mut self, flow: Flow) -> Result<Vec<Out>, Refused> {
        let target = Target::new(b"sip:peer.example", flow);
        self.host.endpoint.send(
            &OutOfDialogRequest::new(Method::Options, target),
            Time::ZERO,
        )?;
        Ok(self.drain())
    }

    fn accept(&mut self, socket: u32, remote: &str, names: &[&str]) -> ConnectionId {
        self.accepted += 1;
        let connection = ConnectionId(ConnectionId::ACCEPTED | self.accepted);
        let local = self.host.address;
        let input = Input::Accepted {
            connection,
            socket: SocketId(socket),
            local,
            remote: remote.parse().unwrap(),
        };
        self.host.feed(input, Time::ZERO);
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let input = Input::Secured {
            connection,
            names: &names,
        };
        self.host.feed(input, Time::ZERO);
        connection
    }

    fn stream(&mut self, connection: ConnectionId, text: &str) -> Vec<Out> {
        let bytes = text.as_bytes();
        self.host
            .feed(Input::Stream { connection, bytes }, Time::ZERO);
        self.drain()
    }
}

fn request(method: &str, uri: &str, via: &str, branch: &str) -> String {
    format!(
        "{method} {uri} SIP/2.0\r\nVia: SIP/2.0/{via};branch=z9hG4bK{branch}\r\nMax-Forwards: 70\r\nFrom: <sip:a@b>;tag=1\r\nTo: <sip:b@c>\r\nCall-ID: {branch}\r\nCSeq: 1 {method}\r\nContact: <sip:a@192.0.2.9>\r\nContent-Length: 0\r\n\r\n"
    )
}

#[test]
fn connection_is_used_only_for_its_verified_name() {
    let mut rig = Rig::new();
    let named = |name: &str, profile: &str| Some((name.to_owned(), profile.to_owned()));
    let a = rig.flow(SERVER, Some(("a.example", "one")));
    let b = rig.flow(SERVER, Some(("b.example", "one")));
    let nobody = rig.flow(SERVER, None);
    let server: SocketAddr = SERVER.parse().unwrap();
    for (number, (flow, secure)) in [
        (a, named("a.example", "one")),
        // The same address with another name: another connection.
        (b, named("b.example", "one")),
        // Without a name the address is the name.
        (nobody, named("192.0.2.9", "")),
    ]
    .into_iter()
    .enumerate()
    {
        let id = ConnectionId(number as u64 + 1);
        let out = rig.options(flow).unwrap();
        assert_eq!(out[0], Out::Connect(id, server, secure));
        let Out::Stream(on, text) = &out[1] else {
            panic!("{out:?}");
        };
        assert_eq!(*on, id);
        assert!(
            text.contains("\r\nVia: SIP/2.0/TLS 192.0.2.1:5061;branch="),
            "{text}"
        );
        // A second request uses the open connection.
        let again = rig.options(flow).unwrap();
        assert!(
            matches!(&again[..], [Out::Stream(on, _)] if *on == id),
            "{again:?}"
        );
    }
    // A closed connection is replaced by one for the same name.
    let closed = Input::Closed {
        connection: ConnectionId(1),
        reason: CloseReason::TlsFailed,
    };
    rig.host.feed(closed, Time::ZERO);
    rig.drain();
    let out = rig.options(a).unwrap();
    assert_eq!(
        out[0],
        Out::Connect(ConnectionId(4), server, named("a.example", "one"))
    );
}

/// Contact and Record-Route name peers by their addresses, also with other ports than those that are configured.
#[test]
fn known_address_requires_the_name_of_its_peer() {
    let mut rig = Rig::new();
    let known = KnownPeer {
        local: rig.tls,
        address: SERVER.parse().unwrap(),
        name: "pbx.example",
        profile: "pbx",
    };
    rig.host.endpoint.learn_peer(&known);
    let named = ("pbx.example".to_owned(), "pbx".to_owned());
    let other = ("192.0.2.8".to_owned(), String::new());
    for (remote, expected) in [
        (SERVER, &named),
        ("192.0.2.9:5062", &named),
        ("192.0.2.8:5061", &other),
    ] {
        let flow = rig.flow(remote, None);
        let out = rig.options(flow).unwrap();
        let address: SocketAddr = remote.parse().unwrap();
        assert!(
            matches!(&out[0], Out::Connect(_, to, Some(name)) if *to == address && name == expected),
            "{out:?}"
        );
        // The same connection serves later requests.
        assert_eq!(rig.options(flow).unwrap().len(), 1);
    }
    let flow = rig.flow(SERVER, Some(("pbx.example", "pbx")));
    assert_eq!(rig.options(flow).unwrap().len(), 1);
    rig.host.endpoint.forget_peers();
    let flow = rig.flow("192.0.2.9:5063", None);
    let out = rig.options(flow).unwrap();
    let unnamed = ("192.0.2.9".to_owned(), String::new());
    assert!(matches!(&out[0], Out::Connect(_, _, Some(name)) if *name == unnamed));
}

#[test]
fn certificate_failure_is_like_connection_failure() {
    let mut rig = Rig::new();
    let flow = rig.flow(SERVER, Some(("a.example", "")));
    let invite = Invite::new(Target::new(b"sips:b@a.example", flow));
    rig.host.endpoint.invite(&invite, Time::ZERO).unwrap();
    rig.drain();
    let closed = Input::Closed {
        connection: ConnectionId(1),
        reason: CloseReason::TlsFailed,
    };
    rig.host.feed(closed, Time::ZERO);
    assert_eq!(
        rig.host.log.count(|recorded| matches!(
            recorded,
            RecordedIndication::Failed(_, sip::Failure::Transport, _)
        )),
        1
    );
}

#[test]
fn alias_is_accepted_only_with_a_verified_certificate() {
    // Names in the certificate, whether the Via has alias, and the name that we want to reach.
    for (names, alias, wanted, reused) in [
        (&["peer.example"][..], true, "peer.example", true),
        (&["PEER.example"][..], true, "peer.example", true),
        (&["peer.example"][..], false, "peer.example", false),
        (&["peer.example"][..], true, "other.example", false),
        (&[][..], true, "peer.example", false),
    ] {
        let mut rig = Rig::new();
        let connection = rig.accept(3, "192.0.2.9:40001", names);
        let via = match alias {
            true => "TLS peer.example:5061;alias",
            false => "TLS peer.example:5061",
        };
        rig.stream(connection, &request("OPTIONS", "sip:x", via, "a"));
        let flow = rig.flow(SERVER, Some((wanted, "")));
        let out = rig.options(flow).unwrap();
        let over = matches!(&out[..], [Out::Stream(on, _)] if *on == connection);
        assert_eq!(over, reused, "{names:?} {alias} {wanted}: {out:?}");
        // The alias ends with its connection.
        let why = CloseReason::Peer;
        rig.host.feed(
            Input::Closed {
                connection,
                reason: why,
            },
            Time::ZERO,
        );
        let out = rig.options(flow).unwrap();
        let connects = matches!(out[0], Out::Connect(..));
        assert_eq!(connects, reused, "otherwise one is open");
    }
}

#[test]
fn unverified_client_is_reached_only_over_its_connection() {
    let mut rig = Rig::new();
    let connection = rig.accept(3, "192.0.2.9:40001", &[]);
    assert_eq!(rig.host.endpoint.names_of(connection), &[] as &[String]);
    // By its address: a host there needs a certificate first.
    let flow = rig.flow("192.0.2.9:40001", None);
    assert!(matches!(rig.options(flow).unwrap()[0], Out::Connect(..)));
    let flow = Flow {
        connection: Some(connection),
        ..flow
    };
    let out = rig.options(flow).unwrap();
    assert!(matches!(&out[..], [Out::Stream(on, _)] if *on == connection));
}

#[test]
fn contacts_are_sips_for_sips_requests() {
    for (scheme, want) in [
        ("sip", "\r\nContact: <sip:192.0.2.1:5061;transport=tls>\r\n"),
        ("sips", "\r\nContact: <sips:192.0.2.1:5061>\r\n"),
    ] {
        let mut rig = Rig::new();
        let flow = rig.flow(SERVER, Some(("a.example", "")));
        let uri = format!("{scheme}:b@a.example");
        let invite = Invite::new(Target::new(uri.as_bytes(), flow));
        rig.host.endpoint.invite(&invite, Time::ZERO).unwrap();
        let out = rig.drain();
        let Some(Out::Stream(_, text)) = out.last() else {
            panic!("{out:?}");
        };
        assert!(text.contains(want), "{text}");
        // And in the answer to an incoming call.
        let connection = rig.accept(3, "192.0.2.9:40001", &[]);
        let text = request("INVITE", &uri, "TLS 192.0.2.9:40001", "b");
        let out = rig.stream(connection, &text);
        let answered = out.iter().any(|out| {
            matches!(out, Out::Stream(_, text) if text.starts_with("SIP/2.0 200") && text.contains(want))
        });
        assert!(answered, "{out:?}");
    }
}

#[test]
fn websocket_message_carries_one_sip_message() {
    let mut rig = Rig::new();
    let connection = rig.accept(4, "192.0.2.9:40001", &[]);
    let via = "WSS df7jal23ls0d.invalid";
    // Without Content-Length: the message ends with the WebSocket message.
    let text = request("OPTIONS", "sip:x", via, "a").replace("Content-Length: 0\r\n", "");
    let out = rig.stream(connection, &text);
    let [Out::Stream(on, text)] = &out[..] else {
        panic!("{out:?}");
    };
    assert_eq!(*on, connection);
    assert!(text.starts_with("SIP/2.0 200 "), "{text}");
    assert!(
        text.contains("\r\nVia: SIP/2.0/WSS df7jal23ls0d.invalid;"),
        "{text}"
    );
    // CRLF keep-alives, because browsers cannot send pings.
    assert_eq!(
        rig.stream(connection, "\r\n\r\n"),
        [Out::Stream(connection, "\r\n".into())]
    );
    assert_eq!(rig.stream(connection, "\r\n"), []);
    assert_eq!(rig.stream(connection, ""), []);
    // An incomplete message is dropped, and the next one does not complete it.
    assert_eq!(rig.stream(connection, "OPTIONS sip:x SI"), []);
    assert_eq!(rig.host.endpoint.drops().get(DropReason::SipUnparsable), 1);
    let out = rig.stream(connection, &request("OPTIONS", "sip:x", via, "b"));
    assert_eq!(out.len(), 1);
    let large = request("OPTIONS", "sip:x", via, "c") + &"x".repeat(70_000);
    assert_eq!(rig.stream(connection, &large), []);
    assert_eq!(rig.host.endpoint.drops().get(DropReason::SipTooLarge), 1);
}

#[test]
fn server_does_not_open_a_closed_websocket() {
    let mut rig = Rig::new();
    let connection = rig.accept(4, "192.0.2.9:40001", &[]);
    let point = rig.host.endpoint.add_listener(ListenerConfig {
        name: String::from("more"),
        socket: SocketId(5),
        transport: Transport::Wss,
        address: "192.0.2.1:444".parse().unwrap(),
        advertised: String::new(),
    });
    let flow = Flow {
        local: point,
        transport: Transport::Wss,
        remote: "192.0.2.9:40001".parse().unwrap(),
        connection: Some(connection),
    };
    assert!(rig.options(flow).is_ok(), "while it is open");
    let why = CloseReason::Peer;
    rig.host.feed(
        Input::Closed {
            connection,
            reason: why,
        },
        Time::ZERO,
    );
    rig.drain();
    assert_eq!(rig.options(flow), Err(Refused::Transport));
}

/// An endpoint that opens WebSockets, as a browser does, and a flow from it.
fn browser(transport: Transport) -> (Rig, Flow) {
    let mut rig = Rig::with(EndpointConfig {
        opens_websockets: true,
        ..EndpointConfig::default()
    });
    let local = rig.host.endpoint.add_listener(ListenerConfig {
        name: String::from("browser"),
        socket: SocketId(9),
        transport,
        address: "192.0.2.1:0".parse().unwrap(),
        advertised: String::from("df7jal23ls0d.invalid"),
    });
    let flow = Flow {
        local,
        transport,
        remote: SERVER.parse().unwrap(),
        connection: None,
    };
    (rig, flow)
}

#[test]
fn websocket_client_uses_its_connection_in_both_directions() {
    for (transport, via, secure) in [
        (Transport::Ws, "WS", None),
        (
            Transport::Wss,
            "WSS",
            Some(("192.0.2.9".to_owned(), String::new())),
        ),
    ] {
        let (mut rig, flow) = browser(transport);
        let id = ConnectionId(1);
        let invite = Invite::new(Target::new(b"sip:b@peer.example", flow));
        rig.host.endpoint.invite(&invite, Time::ZERO).unwrap();
        let out = rig.drain();
        let [Out::ConnectWeb(on, to, named), Out::Stream(by, text)] = &out[..] else {
            panic!("{out:?}");
        };
        assert_eq!((*on, *by, *to), (id, id, SERVER.parse().unwrap()));
        assert_eq!(*named, secure);
        let head = format!("\r\nVia: SIP/2.0/{via} df7jal23ls0d.invalid;branch=z9hG4bK");
        assert!(text.contains(&head), "{text}");
        let contact = "\r\nContact: <sip:df7jal23ls0d.invalid;transport=ws>\r\n";
        assert!(text.contains(contact), "{text}");
        let local: SocketAddr = "192.0.2.1:40000".parse().unwrap();
        let connected = Input::Connected {
            connection: id,
            local,
        };
        rig.host.feed(connected, Time::ZERO);
        // The answer arrives and the ACK is sent over it, independent of the address in its Contact.
        let mut answer = String::from("SIP/2.0 200 OK\r\n");
        for line in text.lines() {
            let kept = ["Via: ", "From: ", "Call-ID: ", "CSeq: "];
            if kept.iter().any(|name| line.starts_with(name)) {
                answer += &format!("{line}\r\n");
            }
        }
        let call_id = common::header(text, wire::sip::HeaderId::CallId).unwrap();
        let from = common::header(text, wire::sip::HeaderId::From).unwrap();
        answer += "To: <sip:b@peer.example>;tag=them\r\nContact: <sip:b@192.0.2.9:5061;transport=ws>\r\n\r\n";
        let out = rig.stream(id, &answer);
        assert!(
            matches!(&out[..], [Out::Stream(on, text)] if *on == id && text.starts_with("ACK sip:b@192.0.2.9:5061;transport=ws ")),
            "{out:?}"
        );
        // A request of the peer arrives and is answered over it.
        let bye = format!(
            "BYE sip:df7jal23ls0d.invalid;transport=ws SIP/2.0\r\nVia: SIP/2.0/{via} 192.0.2.9:5061;branch=z9hG4bKbye\r\nMax-Forwards: 70\r\nFrom: <sip:b@peer.example>;tag=them\r\nTo: {from}\r\nCall-ID: {call_id}\r\nCSeq: 1 BYE\r\n\r\n"
        );
        let out = rig.stream(id, &bye);
        assert!(
            matches!(&out[..], [Out::Stream(on, text)] if *on == id && text.starts_with("SIP/2.0 200 ")),
            "{out:?}"
        );
        // A refused or closed connection fails its pending transactions; the next request opens another one.
        rig.options(flow).unwrap();
        let why = CloseReason::ConnectFailed;
        rig.host.feed(
            Input::Closed {
                connection: id,
                reason: why,
            },
            Time::ZERO,
        );
        rig.drain();
        let out = rig.options(flow).unwrap();
        assert!(
            matches!(&out[0], Out::ConnectWeb(on, ..) if *on == ConnectionId(2)),
            "{out:?}"
        );
    }
}

#[test]
fn websocket_client_keep_alive() {
    let (mut rig, flow) = browser(Transport::Ws);
    rig.options(flow).unwrap();
    let id = ConnectionId(1);
    rig.host.endpoint.keep_alive(flow, Time::ZERO).unwrap();
    assert_eq!(rig.drain(), [Out::Stream(id, "\r\n\r\n".into())]);
    assert_eq!(rig.stream(id, "\r\n"), []);
    rig.host.feed(Input::Timeout, Time(20_000_000_000));
    let closed = rig.drain().contains(&Out::Close(id));
    assert!(!closed, "the pong was received");
    // Without an answer it is closed.
    let now = Time(20_000_000_000);
    rig.host.endpoint.keep_alive(flow, now).unwrap();
    rig.host.feed(Input::Timeout, Time(40_000_000_000));
    assert!(rig.drain().contains(&Out::Close(id)));
}

#[test]
fn slow_message_closes_its_connection() {
    let mut rig = Rig::new();
    let slow = rig.accept(3, "192.0.2.9:40001", &[]);
    let busy = rig.accept(3, "192.0.2.8:40001", &[]);
    let mut closed = Vec::new();
    for second in 0..40 {
        let now = Time(second * 1_000_000_000);
        // One never ends its header, the other sends complete messages, each with the beginning of the next.
        for (connection, text) in [
            (
                slow,
                if second == 0 {
                    "OPTIONS sip:x SIP/2.0\r\nX: ".to_owned()
                } else {
                    "y".to_owned()
                },
            ),
            (
                busy,
                request(
                    "OPTIONS",
                    "sip:x",
                    "TLS 192.0.2.8:40001",
                    &second.to_string(),
                ),
            ),
        ] {
            let (mine, next) = match connection == busy && second > 0 {
                true => (
                    text.strip_prefix("OPT").unwrap_or_default().to_owned(),
                    "OPT",
                ),
                false => (text, if connection == busy { "OPT" } else { "" }),
            };
            let bytes = mine + next;
            let bytes = bytes.as_bytes();
            rig.host.feed(Input::Stream { connection, bytes }, now);
            closed.extend(rig.drain().into_iter().filter_map(|out| match out {
                Out::Close(id) => Some((second, id)),
                _ => None,
            }));
        }
    }
    assert_eq!(closed.len(), 1, "{closed:?}");
    assert_eq!(closed[0].1, slow);
    assert!(
        (30..=31).contains(&closed[0].0),
        "after 30 seconds: {closed:?}"
    );
    assert_eq!(rig.host.endpoint.drops().get(DropReason::StreamTimeout), 1);
}

/// CPU time of this thread in nanoseconds: other programs of the machine do not change it.
fn cpu_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("schedstat");
    let first = text.split(' ').next().and_then(|word| word.parse().ok());
    first.expect("nanoseconds")
}

#[test]
fn huge_messages_are_refused_in_bounded_time() {
    let head = "OPTIONS sip:x SIP/2.0\r\nVia: SIP/2.0/TLS 192.0.2.9;branch=z9hG4bKa\r\n";
    let quotes = "\"\\\"".repeat(8_000);
    let billion = format!("Contact: {quotes}<sip:a@b;x={quotes}>\r\n");
    let cases = [
        // A megabyte in one header, in 10,000 headers, and as a body.
        format!("{head}X: {}\r\n", "y".repeat(1 << 20)),
        format!("{head}{}", "X: some header of a hundred letters, more or less, which nobody has ever asked for\r\n".repeat(10_000)),
        format!("{head}Content-Length: 1048576\r\n\r\n"),
        // 10,000 short headers, and nested quotes, within the limit.
        format!("{head}{}Content-Length: 0\r\n\r\n", "a:b\r\n".repeat(10_000)),
        format!("{head}{billion}Content-Length: 0\r\n\r\n"),
    ];
    for (number, text) in cases.iter().enumerate() {
        for piece in [100, text.len()] {
            let mut rig = Rig::new();
            let connection = rig.accept(3, "192.0.2.9:40001", &[]);
            let begun = cpu_ns();
            let mut out = Vec::new();
            for bytes in text.as_bytes().chunks(piece) {
                let input = Input::Stream { connection, bytes };
                rig.host.feed(input, Time::ZERO);
                out.extend(rig.drain());
            }
            assert!(cpu_ns() - begun < 2_000_000_000, "case {number}");
            let closed = out.contains(&Out::Close(connection));
            assert_eq!(closed, number < 3, "case {number}: {out:?}");
            let census = rig.host.endpoint.census();
            assert_eq!(census.connections, usize::from(!closed), "case {number}");
            assert_eq!((census.servers, census.legs), (0, 0), "case {number}");
        }
    }
}
