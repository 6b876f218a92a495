//! WebSockets opened by us, over real sockets: to our own listener, and to servers with handcrafted bytes.

use crate::common;

use common::{Authority, Rig, run_all, security};
use engine::{CloseReason, ConnectionId, DropReason, EventKind, SocketKind};
use net::tls::{ClientAuth, Security, WebSocketSettings};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

const ID: ConnectionId = ConnectionId(1);

fn client() -> Rig {
    let mut rig = Rig::new(Security::default());
    rig.host.expects_tls = false;
    rig
}

fn texts(rig: &Rig, id: ConnectionId) -> Vec<String> {
    let all = rig.host.messages.get(&id).into_iter().flatten();
    all.map(|one| String::from_utf8(one.clone()).unwrap())
        .collect()
}

#[test]
fn messages_are_exchanged_over_an_outgoing_websocket() {
    let (mut server, address) = Rig::websocket(WebSocketSettings {
        hosts: vec!["127.0.0.1".to_owned()],
        ..WebSocketSettings::default()
    });
    let mut client = client();
    client.host.open_websocket(ID, address, None);
    // Before the handshake is complete, and several messages.
    client.host.send(ID, b"first");
    client.host.send(ID, b"second");
    run_all(&mut [&mut client, &mut server], |rigs| {
        texts(rigs[0], ID).len() == 2
    });
    assert!(client.host.is_connected(ID));
    assert_eq!(texts(&client, ID), ["first", "second"]);
    let server_connection = server.host.accepted()[0];
    assert_eq!(texts(&server, server_connection), ["first", "second"]);
    let long = "y".repeat(9_000);
    client.host.send(ID, long.as_bytes());
    client.host.send(ID, &[0xff, 0xfe]);
    run_all(&mut [&mut client, &mut server], |rigs| {
        rigs[0].host.messages[&ID].len() == 4
    });
    assert_eq!(client.host.messages[&ID][2], long.as_bytes());
    assert_eq!(client.host.messages[&ID][3], [0xff, 0xfe]);
    client.host.close(ID);
    run_all(&mut [&mut client, &mut server], |rigs| {
        rigs[1].host.closed(server_connection).is_some()
    });
    assert_eq!(
        server.host.closed(server_connection),
        Some(CloseReason::Peer)
    );
    assert_eq!(client.host.closed(ID), Some(CloseReason::Engine));
    let drops = |rig: &Rig| rig.driver.counters().drops;
    for rig in [&client, &server] {
        assert_eq!(drops(rig).get(DropReason::WebSocketHandshakeFailed), 0);
        assert_eq!(drops(rig).get(DropReason::WebSocketBroken), 0);
        assert_eq!(drops(rig).get(DropReason::SendFailed), 0);
    }
}

#[test]
fn websocket_over_tls_verifies_the_server_name() {
    let authority = Authority::new("wss-client");
    let identity = authority.identity(&["sip.example.com"], |_| {});
    let settings = security(&authority, identity, ClientAuth::None);
    for (name, stands) in [("sip.example.com", true), ("other.example.com", false)] {
        let (mut server, address) = Rig::server_with(&settings, SocketKind::WssListener, |_| {});
        let mut client = Rig::client(&authority.client(None));
        client.host.open_websocket(ID, address, Some(name));
        client.host.send(ID, b"hello");
        run_all(&mut [&mut client, &mut server], |rigs| {
            let host = &rigs[0].host;
            host.closed(ID).is_some() || host.messages.contains_key(&ID)
        });
        match stands {
            true => assert_eq!(texts(&client, ID), ["hello"]),
            false => assert_eq!(client.host.closed(ID), Some(CloseReason::TlsFailed)),
        }
    }
}

/// A server with handcrafted bytes; the client runs its turns meanwhile.
struct Server {
    listener: TcpListener,
    stream: Option<TcpStream>,
    received: Vec<u8>,
    over: bool,
}

impl Server {
    fn new() -> (Server, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let server = Server {
            listener,
            stream: None,
            received: Vec::new(),
            over: false,
        };
        (server, address)
    }

    fn run_until(&mut self, rig: &mut Rig, done: impl Fn(&Server, &Rig) -> bool) {
        let begun = Instant::now();
        while !done(self, rig) {
            rig.turn();
            self.read();
            assert!(
                begun.elapsed() < Duration::from_secs(20),
                "received only {}",
                self.received.escape_ascii()
            );
        }
    }

    fn read(&mut self) {
        let Some(stream) = &mut self.stream else {
            if let Ok((stream, _)) = self.listener.accept() {
                stream.set_nonblocking(true).unwrap();
                self.stream = Some(stream);
            }
            return;
        };
        let mut buffer = [0; 4_096];
        match stream.read(&mut buffer) {
            Ok(0) => self.over = true,
            Ok(n) => self.received.extend_from_slice(&buffer[..n]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => self.over = true,
        }
    }

    fn send(&mut self, bytes: &[u8]) {
        self.stream.as_mut().unwrap().write_all(bytes).unwrap();
    }

    /// Reads the request and returns the accepting response.
    fn answer(&mut self, rig: &mut Rig) -> Vec<u8> {
        self.run_until(rig, |server, _| server.received.ends_with(b"\r\n\r\n"));
        let mut reply = Vec::new();
        let opened =
            wire::ws::handshake(&self.received, wire::ws::SIP_PROTOCOL, &[], &[], &mut reply);
        assert_eq!(opened, wire::ws::Handshake::Open(self.received.len()));
        self.received.clear();
        reply
    }
}

#[test]
fn websocket_request_has_host_and_path_and_frames_wait_for_the_response() {
    let (mut server, address) = Server::new();
    let mut security = Security::default();
    for wrong in ["", "ws", "/a b", "/\r\nX: y"] {
        assert!(security.set_websocket_path(wrong).is_err(), "{wrong}");
    }
    security.set_websocket_path("/ws?x=1").unwrap();
    let mut rig = Rig::new(security);
    rig.host.expects_tls = false;
    rig.host.open_websocket(ID, address, None);
    rig.host.send(ID, b"hello");
    server.run_until(&mut rig, |server, _| server.received.ends_with(b"\r\n\r\n"));
    let head = format!("GET /ws?x=1 HTTP/1.1\r\nHost: {address}\r\n");
    assert!(server.received.starts_with(head.as_bytes()));
    let answer = server.answer(&mut rig);
    assert!(!rig.host.is_connected(ID));
    // The response in two pieces, the second with a ping and a message behind it.
    let (first, second) = answer.split_at(30);
    server.send(first);
    for _ in 0..20 {
        rig.turn();
        server.read();
    }
    assert_eq!(server.received, b"");
    server.send(&[second, b"\x89\x01p\x81\x05world"].concat());
    server.run_until(&mut rig, |server, rig| {
        server.received.len() >= 11 + 7 && rig.host.messages.contains_key(&ID)
    });
    assert!(rig.host.is_connected(ID));
    assert_eq!(texts(&rig, ID), ["world"]);
    // A masked hello, then a masked pong, with different masks.
    let received = &server.received;
    assert_eq!((received[0], received[1]), (0x81, 0x85));
    assert_eq!((received[11], received[12]), (0x8a, 0x81));
    assert_ne!(received[2..6], received[13..17]);
    let hello: Vec<u8> = (0..5)
        .map(|at| received[6 + at] ^ received[2 + at % 4])
        .collect();
    assert_eq!(hello, b"hello");
    assert_eq!(received[17] ^ received[13], b'p');
    // The server closes in order.
    server.received.clear();
    server.send(b"\x88\x02\x03\xe8");
    server.run_until(&mut rig, |server, _| server.over);
    assert_eq!(rig.host.closed(ID), Some(CloseReason::Peer));
    assert_eq!((server.received[0], server.received[1]), (0x88, 0x82));
}

#[test]
fn refused_websocket_handshake_is_reported_and_closes() {
    for (answer, why) in [
        ("HTTP/1.1 503 Busy\r\n\r\n", "503 Busy"),
        ("SIP/2.0 400 Bad Request\r\n\r\n", "HTTP/1.1"),
        (
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\nSec-WebSocket-Protocol: sip\r\n\r\n",
            "does not match the key",
        ),
        ("HTTP/1.1 101 S\r\nX: ", "the peer closed the connection"),
    ] {
        let (mut server, address) = Server::new();
        let mut rig = client();
        rig.host.open_websocket(ID, address, None);
        rig.host.send(ID, b"never sent");
        server.answer(&mut rig);
        server.send(answer.as_bytes());
        if why.contains("closed") {
            let stream = server.stream.as_ref().unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
        }
        server.run_until(&mut rig, |server, _| server.over);
        assert_eq!(
            server.received, b"",
            "no data is sent before a valid response"
        );
        let want = match why.contains("closed") {
            true => CloseReason::Peer,
            false => CloseReason::ConnectFailed,
        };
        assert_eq!(rig.host.closed(ID), Some(want), "{why}");
        assert!(!rig.host.is_connected(ID));
        let drops = rig.driver.counters().drops;
        assert_eq!(drops.get(DropReason::WebSocketHandshakeFailed), 1, "{why}");
        let events = rig.events();
        let reported = events.iter().any(|note| {
            matches!(note, EventKind::WebsocketFailed { reason: said, peer, .. } if said.contains(why) && *peer == address.to_string())
        });
        assert!(reported, "{why}: {events:?}");
    }
}

#[test]
fn server_protocol_errors_close_after_valid_messages() {
    // A masked frame, a reserved bit, and an announced length of eight gigabytes.
    for (bytes, code) in [
        (&b"\x81\x81\0\0\0\0x"[..], 1002u16),
        (&b"\xc1\x01x"[..], 1002),
        (&b"\x82\x7f\0\0\0\x02\0\0\0\0"[..], 1009),
    ] {
        let (mut server, address) = Server::new();
        let mut rig = client();
        rig.host.open_websocket(ID, address, None);
        let answer = server.answer(&mut rig);
        server.send(&[&answer[..], b"\x81\x04good", bytes].concat());
        server.run_until(&mut rig, |server, _| server.over);
        assert_eq!(texts(&rig, ID), ["good"]);
        assert_eq!(rig.host.closed(ID), Some(CloseReason::Error));
        let received = &server.received;
        assert_eq!((received[0], received[1]), (0x88, 0x82));
        let said = [received[6] ^ received[2], received[7] ^ received[3]];
        assert_eq!(u16::from_be_bytes(said), code);
        let drops = rig.driver.counters().drops;
        assert_eq!(drops.get(DropReason::WebSocketBroken), 1);
    }
}

#[test]
fn silent_server_times_out_and_the_queue_is_bounded() {
    let mut config = net::DriverConfig {
        handshake_timeout: Duration::from_millis(300),
        stream_buffer: 10_000,
        ..net::DriverConfig::default()
    };
    let (mut server, address) = Server::new();
    let mut rig = client();
    rig.driver = net::Driver::plain(config.clone(), net::Clock::new()).unwrap();
    rig.host.open_websocket(ID, address, None);
    rig.host.send(ID, b"hello");
    server.run_until(&mut rig, |_, rig| rig.host.closed(ID).is_some());
    assert_eq!(rig.host.closed(ID), Some(CloseReason::ConnectFailed));
    let drops = rig.driver.counters().drops;
    assert_eq!(drops.get(DropReason::StreamTimeout), 1);
    assert_eq!(drops.get(DropReason::WebSocketHandshakeFailed), 1);

    config.handshake_timeout = Duration::from_secs(60);
    let (mut server, address) = Server::new();
    let mut rig = client();
    rig.driver = net::Driver::plain(config, net::Clock::new()).unwrap();
    rig.host.open_websocket(ID, address, None);
    for _ in 0..11 {
        rig.host.send(ID, &[b'x'; 1_000]);
    }
    server.run_until(&mut rig, |_, rig| rig.host.closed(ID).is_some());
    assert_eq!(rig.host.closed(ID), Some(CloseReason::Backpressure));
}
