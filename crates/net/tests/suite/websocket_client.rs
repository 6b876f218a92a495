//! WebSockets that we open, over real sockets: to a listener of ours, and to servers of bytes written by hand.

use crate::common;

use common::{Authority, Rig, pump, security};
use engine::{CloseWhy, ConnectionId, DropReason, Note, SocketKind};
use net::tls::{Proof, Security, WebSocketSettings};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

const ID: ConnectionId = ConnectionId(1);

fn client() -> Rig {
    let mut rig = Rig::new(Security::default());
    rig.host.secures = false;
    rig
}

fn texts(rig: &Rig, id: ConnectionId) -> Vec<String> {
    let all = rig.host.messages.get(&id).into_iter().flatten();
    all.map(|one| String::from_utf8(one.clone()).unwrap())
        .collect()
}

#[test]
fn messages_go_and_come_by_a_websocket_that_we_open() {
    let (mut server, address) = Rig::websocket(WebSocketSettings {
        hosts: vec!["127.0.0.1".to_owned()],
        ..WebSocketSettings::default()
    });
    let mut client = client();
    client.host.open_websocket(ID, address, None);
    // Before anything stands, and more than one of them.
    client.host.send(ID, b"first");
    client.host.send(ID, b"second");
    pump(&mut [&mut client, &mut server], |rigs| {
        texts(rigs[0], ID).len() == 2
    });
    assert!(client.host.is_connected(ID));
    assert_eq!(texts(&client, ID), ["first", "second"]);
    let there = server.host.accepted()[0];
    assert_eq!(texts(&server, there), ["first", "second"]);
    let long = "y".repeat(9_000);
    client.host.send(ID, long.as_bytes());
    client.host.send(ID, &[0xff, 0xfe]);
    pump(&mut [&mut client, &mut server], |rigs| {
        rigs[0].host.messages[&ID].len() == 4
    });
    assert_eq!(client.host.messages[&ID][2], long.as_bytes());
    assert_eq!(client.host.messages[&ID][3], [0xff, 0xfe]);
    client.host.close(ID);
    pump(&mut [&mut client, &mut server], |rigs| {
        rigs[1].host.closed(there).is_some()
    });
    assert_eq!(server.host.closed(there), Some(CloseWhy::Peer));
    assert_eq!(client.host.closed(ID), Some(CloseWhy::Engine));
    let drops = |rig: &Rig| rig.driver.counters().drops;
    for rig in [&client, &server] {
        assert_eq!(drops(rig).get(DropReason::WebSocketRefused), 0);
        assert_eq!(drops(rig).get(DropReason::WebSocketBroken), 0);
        assert_eq!(drops(rig).get(DropReason::SendFailed), 0);
    }
}

#[test]
fn inside_tls_the_name_is_asked_for_and_held_against_the_certificate() {
    let authority = Authority::new("wss-client");
    let identity = authority.identity(&["sip.example.com"], |_| {});
    let settings = security(&authority, identity, Proof::None);
    for (name, stands) in [("sip.example.com", true), ("other.example.com", false)] {
        let (mut server, address) = Rig::server_with(&settings, SocketKind::WssListener, |_| {});
        let mut client = Rig::client(&authority.client(None));
        client.host.open_websocket(ID, address, Some(name));
        client.host.send(ID, b"hello");
        pump(&mut [&mut client, &mut server], |rigs| {
            let host = &rigs[0].host;
            host.closed(ID).is_some() || host.messages.contains_key(&ID)
        });
        match stands {
            true => assert_eq!(texts(&client, ID), ["hello"]),
            false => assert_eq!(client.host.closed(ID), Some(CloseWhy::Untrusted)),
        }
    }
}

/// A server of bytes; the client turns beside it.
struct Server {
    listener: TcpListener,
    stream: Option<TcpStream>,
    heard: Vec<u8>,
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
            heard: Vec::new(),
            over: false,
        };
        (server, address)
    }

    fn until(&mut self, rig: &mut Rig, done: impl Fn(&Server, &Rig) -> bool) {
        let begun = Instant::now();
        while !done(self, rig) {
            rig.turn();
            self.read();
            assert!(
                begun.elapsed() < Duration::from_secs(20),
                "heard only {}",
                self.heard.escape_ascii()
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
            Ok(n) => self.heard.extend_from_slice(&buffer[..n]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => self.over = true,
        }
    }

    fn say(&mut self, bytes: &[u8]) {
        self.stream.as_mut().unwrap().write_all(bytes).unwrap();
    }

    /// Reads the request and gives the answer that opens.
    fn answer(&mut self, rig: &mut Rig) -> Vec<u8> {
        self.until(rig, |server, _| server.heard.ends_with(b"\r\n\r\n"));
        let mut reply = Vec::new();
        let opened = wire::ws::handshake(&self.heard, wire::ws::SIP_PROTOCOL, &[], &[], &mut reply);
        assert_eq!(opened, wire::ws::Handshake::Open(self.heard.len()));
        self.heard.clear();
        reply
    }
}

#[test]
fn the_request_names_host_and_path_and_nothing_follows_before_the_answer() {
    let (mut server, address) = Server::new();
    let mut security = Security::default();
    for wrong in ["", "ws", "/a b", "/\r\nX: y"] {
        assert!(security.websocket_path_to_ask(wrong).is_err(), "{wrong}");
    }
    security.websocket_path_to_ask("/ws?x=1").unwrap();
    let mut rig = Rig::new(security);
    rig.host.secures = false;
    rig.host.open_websocket(ID, address, None);
    rig.host.send(ID, b"hello");
    server.until(&mut rig, |server, _| server.heard.ends_with(b"\r\n\r\n"));
    let head = format!("GET /ws?x=1 HTTP/1.1\r\nHost: {address}\r\n");
    assert!(server.heard.starts_with(head.as_bytes()));
    let answer = server.answer(&mut rig);
    assert!(!rig.host.is_connected(ID));
    // The answer in two pieces, the second with a ping and a message behind it.
    let (first, second) = answer.split_at(30);
    server.say(first);
    for _ in 0..20 {
        rig.turn();
        server.read();
    }
    assert_eq!(server.heard, b"");
    server.say(&[second, b"\x89\x01p\x81\x05world"].concat());
    server.until(&mut rig, |server, rig| {
        server.heard.len() >= 11 + 7 && rig.host.messages.contains_key(&ID)
    });
    assert!(rig.host.is_connected(ID));
    assert_eq!(texts(&rig, ID), ["world"]);
    // A masked hello, then a masked pong, with masks that differ.
    let heard = &server.heard;
    assert_eq!((heard[0], heard[1]), (0x81, 0x85));
    assert_eq!((heard[11], heard[12]), (0x8a, 0x81));
    assert_ne!(heard[2..6], heard[13..17]);
    let hello: Vec<u8> = (0..5).map(|at| heard[6 + at] ^ heard[2 + at % 4]).collect();
    assert_eq!(hello, b"hello");
    assert_eq!(heard[17] ^ heard[13], b'p');
    // The server closes in order.
    server.heard.clear();
    server.say(b"\x88\x02\x03\xe8");
    server.until(&mut rig, |server, _| server.over);
    assert_eq!(rig.host.closed(ID), Some(CloseWhy::Peer));
    assert_eq!((server.heard[0], server.heard[1]), (0x88, 0x82));
}

#[test]
fn an_answer_that_opens_nothing_is_told_and_ends_it() {
    for (answer, why) in [
        ("HTTP/1.1 503 Busy\r\n\r\n", "503 Busy"),
        ("SIP/2.0 400 Bad Request\r\n\r\n", "HTTP/1.1"),
        (
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\nSec-WebSocket-Protocol: sip\r\n\r\n",
            "does not fit our key",
        ),
        ("HTTP/1.1 101 S\r\nX: ", "the peer closed the connection"),
    ] {
        let (mut server, address) = Server::new();
        let mut rig = client();
        rig.host.open_websocket(ID, address, None);
        rig.host.send(ID, b"never heard");
        server.answer(&mut rig);
        server.say(answer.as_bytes());
        if why.contains("closed") {
            let stream = server.stream.as_ref().unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
        }
        server.until(&mut rig, |server, _| server.over);
        assert_eq!(server.heard, b"", "nothing is said to a stranger");
        let want = match why.contains("closed") {
            true => CloseWhy::Peer,
            false => CloseWhy::Refused,
        };
        assert_eq!(rig.host.closed(ID), Some(want), "{why}");
        assert!(!rig.host.is_connected(ID));
        let drops = rig.driver.counters().drops;
        assert_eq!(drops.get(DropReason::WebSocketRefused), 1, "{why}");
        let events = rig.events();
        let told = events.iter().any(|note| {
            matches!(note, Note::WebsocketRefused { why: said, peer, .. } if said.contains(why) && *peer == address.to_string())
        });
        assert!(told, "{why}: {events:?}");
    }
}

#[test]
fn breaches_of_a_server_end_it_after_what_was_good_before() {
    // A masked frame, a reserved bit, and an announcement of eight gigabytes.
    for (bytes, code) in [
        (&b"\x81\x81\0\0\0\0x"[..], 1002u16),
        (&b"\xc1\x01x"[..], 1002),
        (&b"\x82\x7f\0\0\0\x02\0\0\0\0"[..], 1009),
    ] {
        let (mut server, address) = Server::new();
        let mut rig = client();
        rig.host.open_websocket(ID, address, None);
        let answer = server.answer(&mut rig);
        server.say(&[&answer[..], b"\x81\x04good", bytes].concat());
        server.until(&mut rig, |server, _| server.over);
        assert_eq!(texts(&rig, ID), ["good"]);
        assert_eq!(rig.host.closed(ID), Some(CloseWhy::Error));
        let heard = &server.heard;
        assert_eq!((heard[0], heard[1]), (0x88, 0x82));
        let said = [heard[6] ^ heard[2], heard[7] ^ heard[3]];
        assert_eq!(u16::from_be_bytes(said), code);
        let drops = rig.driver.counters().drops;
        assert_eq!(drops.get(DropReason::WebSocketBroken), 1);
    }
}

#[test]
fn a_server_that_never_answers_is_given_up_and_what_waits_has_a_bound() {
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
    server.until(&mut rig, |_, rig| rig.host.closed(ID).is_some());
    assert_eq!(rig.host.closed(ID), Some(CloseWhy::Refused));
    let drops = rig.driver.counters().drops;
    assert_eq!(drops.get(DropReason::StreamTooSlow), 1);
    assert_eq!(drops.get(DropReason::WebSocketRefused), 1);

    config.handshake_timeout = Duration::from_secs(60);
    let (mut server, address) = Server::new();
    let mut rig = client();
    rig.driver = net::Driver::plain(config, net::Clock::new()).unwrap();
    rig.host.open_websocket(ID, address, None);
    for _ in 0..11 {
        rig.host.send(ID, &[b'x'; 1_000]);
    }
    server.until(&mut rig, |_, rig| rig.host.closed(ID).is_some());
    assert_eq!(rig.host.closed(ID), Some(CloseWhy::Backpressure));
}
