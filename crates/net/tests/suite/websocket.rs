//! WebSocket over real sockets, with handcrafted bytes.

use crate::common;

use common::{Authority, Rig, security};
use engine::{CloseReason, ConnectionId, DropReason, EventKind, SocketKind};
use net::tls::{ClientAuth, WebSocketSettings};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

const OPEN: &str = "GET / HTTP/1.1\r\nHost: sip.example.com\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: sip\r\nOrigin: https://phone.example.com\r\n\r\n";

fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
    let mask = [1, 2, 3, 4];
    let mut bytes = vec![first];
    match payload.len() {
        short @ ..126 => bytes.push(0x80 | short as u8),
        medium => {
            bytes.push(0x80 | 126);
            bytes.extend_from_slice(&u16::try_from(medium).unwrap().to_be_bytes());
        }
    }
    bytes.extend_from_slice(&mask);
    bytes.extend(payload.iter().zip(mask.iter().cycle()).map(|(b, m)| b ^ m));
    bytes
}

/// A browser with handcrafted bytes.
struct Client {
    stream: TcpStream,
    received: Vec<u8>,
    over: bool,
}

impl Client {
    fn new(address: SocketAddr) -> Client {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nonblocking(true).unwrap();
        Client {
            stream,
            received: Vec::new(),
            over: false,
        }
    }

    fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    fn read(&mut self) {
        let mut buffer = [0; 4_096];
        match self.stream.read(&mut buffer) {
            Ok(0) => self.over = true,
            Ok(n) => self.received.extend_from_slice(&buffer[..n]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => self.over = true,
        }
    }

    /// Runs turns of the server until the client has received the expected bytes.
    fn run_until(&mut self, rig: &mut Rig, done: impl Fn(&Client, &Rig) -> bool) {
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

    fn open(address: SocketAddr, rig: &mut Rig) -> Client {
        let mut client = Client::new(address);
        client.send(OPEN.as_bytes());
        client.run_until(rig, |client, _| client.received.ends_with(b"\r\n\r\n"));
        assert!(client.received.starts_with(b"HTTP/1.1 101 "));
        client.received.clear();
        client
    }
}

fn only(rig: &Rig) -> ConnectionId {
    let accepted = rig.host.accepted();
    assert_eq!(accepted.len(), 1);
    accepted[0]
}

#[test]
fn websocket_messages_keep_their_boundaries() {
    let (mut rig, address) = Rig::websocket(WebSocketSettings::default());
    let mut client = Client::open(address, &mut rig);
    // Two messages, one of them fragmented, with a ping between, in one write; then one split in the middle.
    let bytes = [
        masked(0x01, b"first "),
        masked(0x89, b"hm"),
        masked(0x80, b"message"),
        masked(0x82, &[0xff, 0xfe]),
    ]
    .concat();
    client.send(&bytes);
    client.run_until(&mut rig, |client, _| {
        client.received.len() >= 4 + 2 + 13 + 4
    });
    let want = [
        &[0x8a, 2][..],
        b"hm",
        &[0x81, 13],
        b"first message",
        &[0x82, 2, 0xff, 0xfe],
    ]
    .concat();
    assert_eq!(client.received, want);
    let id = only(&rig);
    assert_eq!(
        rig.host.messages[&id],
        [b"first message".to_vec(), vec![0xff, 0xfe]]
    );
    client.received.clear();
    let cut = masked(0x81, &[b'y'; 200]);
    client.send(&cut[..100]);
    for _ in 0..20 {
        rig.turn();
    }
    assert_eq!(rig.host.messages[&id].len(), 2);
    client.send(&cut[100..]);
    client.run_until(&mut rig, |client, _| client.received.len() == 204);
}

#[test]
fn pings_of_one_read_are_one_keep_alive_for_the_engine() {
    let (mut rig, address) = Rig::websocket(WebSocketSettings::default());
    let mut client = Client::open(address, &mut rig);
    let id = only(&rig);
    client.send(&[masked(0x89, b"a"), masked(0x89, b"b"), masked(0x89, b"c")].concat());
    // The last ping is answered; the engine echoes its input.
    client.run_until(&mut rig, |client, _| client.received.len() >= 3 + 4);
    assert_eq!(client.received, b"\x8a\x01c\x81\x02\r\n");
    assert_eq!(rig.host.messages[&id], [b"\r\n".to_vec()]);
    // Not for other protocols.
    let settings = WebSocketSettings {
        protocol: Some("other"),
        ..WebSocketSettings::default()
    };
    let (mut rig, address) = Rig::websocket(settings);
    let mut client = Client::new(address);
    let request = OPEN.replace("Protocol: sip", "Protocol: other");
    client.send(request.as_bytes());
    client.run_until(&mut rig, |client, _| client.received.ends_with(b"\r\n\r\n"));
    client.received.clear();
    client.send(&masked(0x89, b"a"));
    client.run_until(&mut rig, |client, _| client.received == b"\x8a\x01a");
    assert!(!rig.host.messages.contains_key(&only(&rig)));
}

#[test]
fn websocket_closes_in_order_from_both_sides() {
    let (mut rig, address) = Rig::websocket(WebSocketSettings::default());
    let mut client = Client::open(address, &mut rig);
    client.send(&masked(0x88, &[0x03, 0xe8]));
    client.run_until(&mut rig, |client, _| client.over);
    assert_eq!(client.received, [0x88, 2, 0x03, 0xe8]);
    assert_eq!(rig.host.closed(only(&rig)), Some(CloseReason::Peer));

    let (mut rig, address) = Rig::websocket(WebSocketSettings::default());
    let mut client = Client::open(address, &mut rig);
    let id = only(&rig);
    rig.host.send(id, b"bye");
    rig.host.close(id);
    client.run_until(&mut rig, |client, _| client.over);
    assert_eq!(client.received, b"\x81\x03bye\x88\x02\x03\xe9");
    assert_eq!(rig.host.closed(id), Some(CloseReason::Engine));
}

#[test]
fn invalid_websocket_requests_are_refused_and_reported() {
    let settings = WebSocketSettings {
        origins: vec!["https://phone.example.com".to_owned()],
        hosts: vec!["sip.example.com".to_owned()],
        protocol: None,
    };
    for (request, status, why) in [
        (
            OPEN.replace("phone.example.com", "evil.example"),
            "403",
            "Origin",
        ),
        (OPEN.replace("Host: sip", "Host: other"), "403", "Host"),
        (
            OPEN.replace("Protocol: sip", "Protocol: chat"),
            "400",
            "subprotocol",
        ),
        ("OPTIONS sip:x SIP/2.0\r\n\r\n".to_owned(), "405", "GET"),
    ] {
        let (mut rig, address) = Rig::websocket(settings.clone());
        let mut client = Client::new(address);
        client.send(request.as_bytes());
        client.run_until(&mut rig, |client, _| client.over);
        let received = String::from_utf8(client.received.clone()).unwrap();
        assert!(
            received.starts_with(&format!("HTTP/1.1 {status} ")),
            "{received}"
        );
        assert_eq!(
            rig.host.closed(only(&rig)),
            Some(CloseReason::ConnectFailed)
        );
        let drops = rig.driver.counters().drops;
        assert_eq!(drops.get(DropReason::WebSocketHandshakeFailed), 1);
        let events = rig.events();
        assert!(
            events.iter().any(
                |note| matches!(note, EventKind::WebsocketFailed { reason: said, .. } if said.contains(why))
            ),
            "{events:?}"
        );
    }
}

#[test]
fn client_protocol_errors_close_after_valid_messages() {
    let mut unmasked = masked(0x81, b"x");
    unmasked[1] &= 0x7f;
    // The rig's limit is 10,000 bytes.
    for (bytes, code) in [(unmasked, 1002u16), (masked(0x82, &[0; 10_001]), 1009)] {
        let (mut rig, address) = Rig::websocket(WebSocketSettings::default());
        let mut client = Client::open(address, &mut rig);
        client.send(&[masked(0x81, b"good"), bytes].concat());
        client.run_until(&mut rig, |client, _| client.over);
        let want = [&b"\x88\x02"[..], &code.to_be_bytes()].concat();
        assert!(
            client.received.ends_with(&want),
            "{}",
            client.received.escape_ascii()
        );
        let id = only(&rig);
        assert_eq!(rig.host.messages[&id], [b"good".to_vec()]);
        assert_eq!(rig.host.closed(id), Some(CloseReason::Error));
        assert_eq!(
            rig.driver.counters().drops.get(DropReason::WebSocketBroken),
            1
        );
    }
}

#[test]
fn unfinished_websocket_request_times_out() {
    let (mut rig, address) = Rig::websocket_with(WebSocketSettings::default(), |config| {
        config.handshake_timeout = Duration::from_millis(300);
    });
    let mut client = Client::new(address);
    let begun = Instant::now();
    let mut sent = 0;
    while !client.over {
        // One byte at a time, never to the end.
        if sent < OPEN.len() - 4
            && client
                .stream
                .write_all(&OPEN.as_bytes()[sent..=sent])
                .is_ok()
        {
            sent += 1;
        }
        rig.turn();
        client.read();
        assert!(begun.elapsed() < Duration::from_secs(20));
    }
    let drops = rig.driver.counters().drops;
    assert_eq!(drops.get(DropReason::StreamTimeout), 1);
    assert_eq!(drops.get(DropReason::WebSocketHandshakeFailed), 1);
}

#[test]
fn openssl_client_opens_a_websocket_over_tls() {
    if std::process::Command::new("openssl")
        .arg("version")
        .output()
        .is_err()
    {
        println!("skipped: not installed: openssl");
        return;
    }
    let authority = Authority::new("wss");
    let server = authority.identity(&["sip.example.com"], |_| {});
    let settings = security(&authority, server, ClientAuth::None);
    let (mut rig, address) = Rig::server_with(&settings, SocketKind::WssListener, |_| {});
    let ca = authority.directory.join("ca.pem");
    let mut child = std::process::Command::new("openssl")
        .args(["s_client", "-quiet", "-ign_eof", "-verify_return_error"])
        .args(["-verify_hostname", "sip.example.com", "-alpn", "http/1.1"])
        .args(["-connect", &address.to_string()])
        .arg("-CAfile")
        .arg(ca)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let reader = std::thread::spawn(move || {
        let mut received = Vec::new();
        let mut buffer = [0; 1_000];
        while !received.ends_with(b"\x81\x05hello") {
            match stdout.read(&mut buffer) {
                Ok(n @ 1..) => received.extend_from_slice(&buffer[..n]),
                _ => break,
            }
        }
        received
    });
    stdin.write_all(OPEN.as_bytes()).unwrap();
    stdin.write_all(&masked(0x81, b"hello")).unwrap();
    let begun = Instant::now();
    while !reader.is_finished() && begun.elapsed() < Duration::from_secs(20) {
        rig.turn();
    }
    let _ = child.kill();
    let _ = child.wait();
    let received = reader.join().unwrap();
    assert!(
        received.starts_with(b"HTTP/1.1 101 "),
        "{}",
        received.escape_ascii()
    );
    assert!(
        received.ends_with(b"\x81\x05hello"),
        "{}",
        received.escape_ascii()
    );
    let id = only(&rig);
    assert_eq!(rig.host.text(id), "hello");
    assert_eq!(rig.host.names(id), Some(vec![]));
}
