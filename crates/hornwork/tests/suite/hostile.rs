//! Hostile input over real sockets at a running border: slow connections, a message of a megabyte, 10,000 headers,
//! nested quotes. Each is handled within bounded time, and a valid OPTIONS is answered meanwhile.

use crate::common;

use common::{Process, border, example, free_port, media_ports, scratch};
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{TcpStream, UdpSocket};
use std::time::{Duration, Instant};

/// Longest time for operations that do not wait.
const PROMPT: Duration = Duration::from_secs(5);

struct Rig {
    sip: u16,
    border: Process,
    phone: UdpSocket,
    asked: std::cell::Cell<u32>,
}

impl Rig {
    fn new(name: &str, more: &str) -> Rig {
        let (sip, trunk) = (free_port(), free_port());
        let media = media_ports(100);
        let configuration = example("loopback.toml", sip, trunk, media, more);
        let border = border(&scratch(name), &configuration, sip);
        let phone = UdpSocket::bind("127.0.0.1:0").unwrap();
        phone.connect(("127.0.0.1", sip)).unwrap();
        Rig {
            sip,
            border,
            phone,
            asked: std::cell::Cell::new(0),
        }
    }

    fn connect(&self) -> TcpStream {
        TcpStream::connect(("127.0.0.1", self.sip)).unwrap()
    }

    /// Response time of a valid OPTIONS over UDP.
    fn answers(&self) -> Duration {
        let begun = Instant::now();
        let number = self.asked.get() + 1;
        self.asked.set(number);
        let local = self.phone.local_addr().unwrap();
        let text = format!(
            "OPTIONS sip:127.0.0.1 SIP/2.0\r\nVia: SIP/2.0/UDP {local};branch=z9hG4bKgood{number};rport\r\nMax-Forwards: 70\r\n\
             From: <sip:t@{local}>;tag=t\r\nTo: <sip:127.0.0.1>\r\nCall-ID: good{number}@{local}\r\nCSeq: 1 OPTIONS\r\n\
             Content-Length: 0\r\n\r\n"
        );
        let mut buffer = [0; 4_096];
        let wait = Some(Duration::from_millis(500));
        self.phone.set_read_timeout(wait).unwrap();
        for _ in 0..20 {
            self.phone.send(text.as_bytes()).unwrap();
            while let Ok(length) = self.phone.recv(&mut buffer) {
                let answer = String::from_utf8_lossy(&buffer[..length]).into_owned();
                if answer.starts_with("SIP/2.0 200") && answer.contains(&format!("good{number}@")) {
                    return begun.elapsed();
                }
            }
        }
        panic!("a good OPTIONS was not answered: {}", self.border.log());
    }
}

fn head(transport: &str, mark: &str) -> String {
    format!(
        "OPTIONS sip:127.0.0.1 SIP/2.0\r\nVia: SIP/2.0/{transport} 127.0.0.1:9;branch=z9hG4bK{mark}\r\nMax-Forwards: 70\r\n\
         From: <sip:t@127.0.0.1>;tag=t\r\nTo: <sip:127.0.0.1>\r\nCall-ID: {mark}\r\nCSeq: 1 OPTIONS\r\n"
    )
}

/// Writes until the socket blocks, and reads until the border closes or is silent; returns its response, and whether it
/// closed.
fn say(stream: &mut TcpStream, bytes: &[u8], wait: Duration) -> (String, bool) {
    stream.set_write_timeout(Some(PROMPT)).unwrap();
    // A border that closes early resets the connection, which counts as a response.
    let written = stream.write_all(bytes).is_ok();
    stream.set_read_timeout(Some(wait)).unwrap();
    let mut log = Vec::new();
    let mut part = [0; 4_096];
    let closed = loop {
        match stream.read(&mut part) {
            Ok(0) => break true,
            Ok(length) => log.extend_from_slice(&part[..length]),
            Err(error) => {
                break !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
            }
        }
    };
    (
        String::from_utf8_lossy(&log).into_owned(),
        closed || !written,
    )
}

#[test]
fn huge_messages_end_within_bounded_time() {
    let rig = Rig::new("hostile-huge", "");
    let quotes = "\"\\\"".repeat(8_000);
    let head = |mark| head("TCP", mark);
    let megabyte = "y".repeat(1 << 20);
    let end = "Content-Length: 0\r\n\r\n";
    // The expected response, and whether the connection must be closed.
    let cases = [
        (
            "a megabyte in a header",
            format!("{}X: {megabyte}\r\n{end}", head("m1")),
            true,
        ),
        ("a megabyte without a line end", megabyte.clone(), true),
        (
            "a body of a megabyte",
            format!("{}Content-Length: 1048576\r\n\r\n{megabyte}", head("m2")),
            true,
        ),
        (
            "10,000 headers of a hundred bytes",
            format!(
                "{}{}{end}",
                head("m3"),
                format!("X: {}\r\n", "z".repeat(95)).repeat(10_000)
            ),
            true,
        ),
        (
            "10,000 short headers",
            format!("{}{}{end}", head("m4"), "a:b\r\n".repeat(10_000)),
            false,
        ),
        (
            "quotes within quotes",
            format!(
                "{}Contact: {quotes}<sip:a@b;x={quotes}>\r\n{end}",
                head("m5")
            ),
            false,
        ),
    ];
    for (name, text, closes) in cases {
        let begun = Instant::now();
        let mut stream = rig.connect();
        let (log, closed) = say(&mut stream, text.as_bytes(), Duration::from_millis(700));
        assert!(begun.elapsed() < PROMPT, "{name}: {:?}", begun.elapsed());
        assert_eq!(closed, closes, "{name}: {log}");
        assert!(!log.starts_with("SIP/2.0 5"), "{name}: {log}");
        assert!(rig.answers() < PROMPT, "{name}");
    }
    // The same over UDP, up to the size of a datagram.
    let datagrams = [
        format!(
            "{}{}{end}",
            self::head("UDP", "u1"),
            "a:b\r\n".repeat(10_000)
        ),
        format!(
            "{}Contact: {quotes}<sip:a@b;x={quotes}>\r\n{end}",
            self::head("UDP", "u2")
        ),
        "y".repeat(65_000),
    ];
    for text in datagrams {
        for _ in 0..20 {
            rig.phone.send(text.as_bytes()).unwrap();
        }
        assert!(rig.answers() < PROMPT);
    }
}

/// Two hundred connections from one source each send a message slowly; other sources are not affected, and each
/// connection is closed half a minute after its start, regardless of further data.
#[test]
fn slow_connections_are_closed() {
    let rig = Rig::new("hostile-loris", "");
    let begun = Instant::now();
    let mut slow: Vec<Option<TcpStream>> = (0..200)
        .map(|_| {
            let stream = rig.connect();
            stream.set_nonblocking(true).unwrap();
            Some(stream)
        })
        .collect();
    let text = head("TCP", "loris") + &"X: y\r\n".repeat(1_000);
    let mut ended = Vec::new();
    let limit = Duration::from_secs(45);
    for byte in text.as_bytes() {
        for place in &mut slow {
            let Some(stream) = place else { continue };
            let mut part = [0; 64];
            let over = match stream.read(&mut part) {
                Ok(0) => true,
                Ok(_) => false,
                Err(error) => error.kind() != ErrorKind::WouldBlock,
            };
            if over || stream.write_all(&[*byte]).is_err() {
                *place = None;
                ended.push(begun.elapsed());
            }
        }
        if ended.len() == slow.len() || begun.elapsed() > limit {
            break;
        }
        assert!(rig.answers() < PROMPT);
        std::thread::sleep(Duration::from_millis(250));
    }
    assert_eq!(ended.len(), 200, "{}", rig.border.log());
    assert!(ended[0] > Duration::from_secs(25), "{:?}", ended[0]);
}
