//! WebSocket over real sockets, by bytes written by hand.

use crate::common;

use common::{Authority, Rig, security};
use engine::{CloseWhy, ConnectionId, DropReason, Note, SocketKind};
use net::tls::{Proof, WebSocketSettings};
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

/// A browser of bytes.
struct Client {
    stream: TcpStream,
    heard: Vec<u8>,
    over: bool,
}

impl Client {
    fn new(address: SocketAddr) -> Client {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nonblocking(true).unwrap();
        Client {
            stream,
            heard: Vec::new(),
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
            Ok(n) => self.heard.extend_from_slice(&buffer[..n]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => self.over = true,
        }
    }

    /// Lets the server turn until the client has heard what it waits for.
    fn until(&mut self, rig: &mut Rig, done: impl Fn(&Client, &Rig) -> bool) {
        let begun = Instant::now();
        while !done(self, rig) {
            rig.turn();
            self.read();
            assert!(
                begun.elapsed() < Duration::from_secs(10),
                "heard only {}",
                self.heard.escape_ascii()
            );
        }
    }

    fn open(address: SocketAddr, rig: &mut Rig) -> Client {
        let mut client = Client::new(address);
        client.send(OPEN.as_bytes());
        client.until(rig, |client, _| client.heard.ends_with(b"\r\n\r\n"));
        assert!(client.heard.starts_with(b"HTTP/1.1 101 "));
        client.heard.clear();
        client
    }
}

fn only(rig: &Rig) -> ConnectionId {
    let accepted = rig.host.accepted();
    assert_eq!(accepted.len(), 1);
    accepted[0]
}

#[test]
fn a_message_is_one_input_and_one_output_is_a_message() {
    let (mut rig, address) = Rig::websocket(WebSocketSettings::default());
    let mut client = Client::open(address, &mut rig);
    // Two messages, one of them in pieces, and a ping between, in one write; then one cut in the middle.
    let bytes = [
        masked(0x01, b"first "),
        masked(0x89, b"hm"),
        masked(0x80, b"message"),
        masked(0x82, &[0xff, 0xfe]),
    ]
    .concat();
    client.send(&bytes);
    client.until(&mut rig, |client, _| client.heard.len() >= 4 + 2 + 13 + 4);
    let want = [
        &[0x8a, 2][..],
        b"hm",
        &[0x81, 13],
        b"first message",
        &[0x82, 2, 0xff, 0xfe],
    ]
    .concat();
    assert_eq!(client.heard, want);
    let id = only(&rig);
    assert_eq!(
        rig.host.messages[&id],
        [b"first message".to_vec(), vec![0xff, 0xfe]]
    );
    client.heard.clear();
    let cut = masked(0x81, &[b'y'; 200]);
    client.send(&cut[..100]);
    for _ in 0..20 {
        rig.turn();
    }
    assert_eq!(rig.host.messages[&id].len(), 2);
    client.send(&cut[100..]);
    client.until(&mut rig, |client, _| client.heard.len() == 204);
}

#[test]
fn both_sides_can_close_in_order() {
    let (mut rig, address) = Rig::websocket(WebSocketSettings::default());
    let mut client = Client::open(address, &mut rig);
    client.send(&masked(0x88, &[0x03, 0xe8]));
    client.until(&mut rig, |client, _| client.over);
    assert_eq!(client.heard, [0x88, 2, 0x03, 0xe8]);
    assert_eq!(rig.host.closed(only(&rig)), Some(CloseWhy::Peer));

    let (mut rig, address) = Rig::websocket(WebSocketSettings::default());
    let mut client = Client::open(address, &mut rig);
    let id = only(&rig);
    rig.host.send(id, b"bye");
    rig.host.close(id);
    client.until(&mut rig, |client, _| client.over);
    assert_eq!(client.heard, b"\x81\x03bye\x88\x02\x03\xe9");
    assert_eq!(rig.host.closed(id), Some(CloseWhy::Engine));
}

#[test]
fn what_is_no_websocket_for_sip_is_refused_and_told() {
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
        client.until(&mut rig, |client, _| client.over);
        let heard = String::from_utf8(client.heard.clone()).unwrap();
        assert!(heard.starts_with(&format!("HTTP/1.1 {status} ")), "{heard}");
        assert_eq!(rig.host.closed(only(&rig)), Some(CloseWhy::Refused));
        let drops = rig.driver.counters().drops;
        assert_eq!(drops.get(DropReason::WebSocketRefused), 1);
        let events = rig.events();
        assert!(
            events.iter().any(
                |note| matches!(note, Note::WebsocketRefused { why: said, .. } if said.contains(why))
            ),
            "{events:?}"
        );
    }
}

#[test]
fn breaches_end_it_after_what_was_good_before() {
    let mut unmasked = masked(0x81, b"x");
    unmasked[1] &= 0x7f;
    // The rig's limit is 10,000 bytes.
    for (bytes, code) in [(unmasked, 1002u16), (masked(0x82, &[0; 10_001]), 1009)] {
        let (mut rig, address) = Rig::websocket(WebSocketSettings::default());
        let mut client = Client::open(address, &mut rig);
        client.send(&[masked(0x81, b"good"), bytes].concat());
        client.until(&mut rig, |client, _| client.over);
        let want = [&b"\x88\x02"[..], &code.to_be_bytes()].concat();
        assert!(
            client.heard.ends_with(&want),
            "{}",
            client.heard.escape_ascii()
        );
        let id = only(&rig);
        assert_eq!(rig.host.messages[&id], [b"good".to_vec()]);
        assert_eq!(rig.host.closed(id), Some(CloseWhy::Error));
        assert_eq!(
            rig.driver.counters().drops.get(DropReason::WebSocketBroken),
            1
        );
    }
}

#[test]
fn who_does_not_finish_the_request_is_cut_off() {
    let (mut rig, address) = Rig::websocket_with(WebSocketSettings::default(), |config| {
        config.handshake_timeout = Duration::from_millis(300);
    });
    let mut client = Client::new(address);
    let begun = Instant::now();
    let mut sent = 0;
    while !client.over {
        // A byte at a time, never to its end.
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
        assert!(begun.elapsed() < Duration::from_secs(5));
    }
    let drops = rig.driver.counters().drops;
    assert_eq!(drops.get(DropReason::StreamTooSlow), 1);
    assert_eq!(drops.get(DropReason::WebSocketRefused), 1);
}

#[test]
fn inside_tls_openssl_opens_one() {
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
    let settings = security(&authority, server, Proof::None);
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
        let mut heard = Vec::new();
        let mut buffer = [0; 1_000];
        while !heard.ends_with(b"\x81\x05hello") {
            match stdout.read(&mut buffer) {
                Ok(n @ 1..) => heard.extend_from_slice(&buffer[..n]),
                _ => break,
            }
        }
        heard
    });
    stdin.write_all(OPEN.as_bytes()).unwrap();
    stdin.write_all(&masked(0x81, b"hello")).unwrap();
    let begun = Instant::now();
    while !reader.is_finished() && begun.elapsed() < Duration::from_secs(10) {
        rig.turn();
    }
    let _ = child.kill();
    let _ = child.wait();
    let heard = reader.join().unwrap();
    assert!(
        heard.starts_with(b"HTTP/1.1 101 "),
        "{}",
        heard.escape_ascii()
    );
    assert!(
        heard.ends_with(b"\x81\x05hello"),
        "{}",
        heard.escape_ascii()
    );
    let id = only(&rig);
    assert_eq!(rig.host.text(id), "hello");
    assert_eq!(rig.host.names(id), Some(vec![]));
}
