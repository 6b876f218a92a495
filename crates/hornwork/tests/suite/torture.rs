//! The messages of RFC 4475 and RFC 5118 sent to a running border, over UDP and TCP: each gets the response in the
//! tables, and after each one the border answers a valid OPTIONS, on the same socket over UDP and on a new connection
//! over TCP.

use crate::common;

use common::{border, example, free_port, media_ports, scratch, testdata};
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{TcpStream, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};

/// Longest wait for a response.
const PATIENCE: Duration = Duration::from_secs(10);
/// Wait in which no response must arrive.
const SILENCE: Duration = Duration::from_millis(150);

/// A message and its entry in the table.
struct TortureCase {
    name: String,
    valid: bool,
    expected: String,
    bytes: Vec<u8>,
}

fn cases(data: &Path) -> Vec<TortureCase> {
    let mut cases = Vec::new();
    for folder in ["rfc4475", "rfc5118"] {
        let folder = data.join("sip-torture").join(folder);
        let table = std::fs::read_to_string(folder.join("EXPECTED.tsv")).expect("table");
        for line in table.lines().skip(1) {
            let columns: Vec<&str> = line.split('\t').collect();
            let [name, _, class, expected] = columns[..] else {
                panic!("a row of four columns: {line}");
            };
            cases.push(TortureCase {
                name: name.to_owned(),
                valid: class == "valid",
                expected: expected.to_owned(),
                bytes: std::fs::read(folder.join(format!("{name}.dat"))).expect("message"),
            });
        }
    }
    cases
}

impl TortureCase {
    /// The status that the table requires, if it requires exactly one.
    fn required_status(&self) -> Option<u16> {
        let text = &self.expected;
        if self.valid || text.contains("liberal") || text.contains("discard") {
            return None;
        }
        ["505", "416", "400"]
            .into_iter()
            .find(|status| text.contains(status))?
            .parse()
            .ok()
    }

    /// Whether it is a response, which is never answered.
    fn is_response(&self) -> bool {
        self.bytes.starts_with(b"SIP/")
    }

    /// The CSeq, which identifies responses to this message among those to others in the same bytes.
    fn cseq(&self) -> Option<String> {
        let text = String::from_utf8_lossy(&self.bytes);
        let line = text
            .lines()
            .find(|line| line.to_ascii_lowercase().starts_with("cseq"))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    }

    /// The error in these responses, if any.
    fn judge(&self, transport: &str, answers: &[(u16, String)]) -> Option<String> {
        let statuses: Vec<u16> = answers.iter().map(|(status, _)| *status).collect();
        let finals: Vec<u16> = statuses.iter().copied().filter(|s| *s >= 200).collect();
        let complaint = |what: String| {
            Some(format!(
                "{} over {transport}: {what}, got {statuses:?} ({})",
                self.name, self.expected
            ))
        };
        if self.is_response() {
            return match statuses.is_empty() {
                true => None,
                false => complaint("a response was answered".to_owned()),
            };
        }
        // Over TCP the border waits for the rest of an announced body.
        if transport == "TCP" && self.expected.contains("TCP wait") {
            return match statuses.is_empty() {
                true => None,
                false => complaint("half a message was answered".to_owned()),
            };
        }
        match self.required_status() {
            Some(status) if finals != [status] => complaint(format!("{status} wanted")),
            Some(_) => None,
            None if statuses.is_empty() => complaint("no answer".to_owned()),
            None if self.valid => {
                // A further message may follow the first one on a stream, and may be invalid.
                let cseq = self.cseq().unwrap_or_default();
                let refused = answers.iter().any(|(status, text)| {
                    matches!(status, 400 | 505) && header(text, "CSeq").is_some_and(|c| c == cseq)
                });
                match refused {
                    true => complaint("well-formed, yet refused as malformed".to_owned()),
                    false => None,
                }
            }
            None => None,
        }
    }
}

fn header<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(key, _)| {
            let key = key.trim();
            key.eq_ignore_ascii_case(name) || (name == "Call-ID" && key.eq_ignore_ascii_case("i"))
        })
        .map(|(_, value)| value.trim())
}

fn status(text: &str) -> u16 {
    text.get(8..11)
        .and_then(|digits| digits.parse().ok())
        .unwrap_or(0)
}

/// A valid OPTIONS.
fn options(transport: &str, local: &str, mark: &str) -> String {
    format!(
        "OPTIONS sip:127.0.0.1 SIP/2.0\r\nVia: SIP/2.0/{transport} {local};branch=z9hG4bK{mark};rport\r\n\
         Max-Forwards: 70\r\nFrom: <sip:t@{local}>;tag=t\r\nTo: <sip:127.0.0.1>\r\nCall-ID: {mark}@{local}\r\n\
         CSeq: 1 OPTIONS\r\nContent-Length: 0\r\n\r\n"
    )
}

/// The UDP socket of all messages.
struct Udp {
    socket: UdpSocket,
    local: String,
}

impl Udp {
    fn new(sip: u16) -> Udp {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("socket");
        socket.connect(("127.0.0.1", sip)).expect("address");
        let local = socket.local_addr().expect("address").to_string();
        Udp { socket, local }
    }

    /// A response within `limit`, or `None`. Requests of the border are ignored.
    fn receive(&self, limit: Duration) -> Option<(u16, String)> {
        let end = Instant::now() + limit;
        let mut buffer = vec![0; 65_536];
        loop {
            let left = end.checked_duration_since(Instant::now())?;
            let _ = self
                .socket
                .set_read_timeout(Some(left.max(Duration::from_millis(1))));
            let length = self.socket.recv(&mut buffer).ok()?;
            let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
            if text.starts_with("SIP/2.0 ") {
                return Some((status(&text), text));
            }
        }
    }

    /// Sends a message, then a valid OPTIONS from the same socket; returns the responses to the first (retransmissions
    /// of the final response to an INVITE once) and whether the second was answered.
    fn ask(&self, case: &TortureCase) -> (Vec<(u16, String)>, bool) {
        self.socket.send(&case.bytes).expect("sent");
        let mut answers: Vec<(u16, String)> = Vec::new();
        let mut limit = match case.is_response() {
            true => SILENCE,
            false => PATIENCE,
        };
        let call = |text: &str| header(text, "Call-ID").unwrap_or_default().to_owned();
        while let Some((status, text)) = self.receive(limit) {
            // Responses to INVITEs of earlier cases may still arrive. (A response to a message without Call-ID has
            // none.)
            let mine = String::from_utf8_lossy(&case.bytes).contains(call(&text).as_str());
            if mine && !answers.iter().any(|(_, old)| *old == text) {
                answers.push((status, text));
            }
            limit = SILENCE;
        }
        let mark = format!("udp{}", case.name);
        let request = options("UDP", &self.local, &mark);
        for _ in 0..3 {
            self.socket.send(request.as_bytes()).expect("sent");
            let end = Instant::now() + Duration::from_secs(3);
            while let Some(left) = end.checked_duration_since(Instant::now()) {
                match self.receive(left) {
                    Some((200, text)) if call(&text).starts_with(mark.as_str()) => {
                        return (answers, true);
                    }
                    _ => {}
                }
            }
        }
        (answers, false)
    }
}

/// Data received on a connection, and whether the border closed it. Waits so long for the first data, and for further
/// data or the end of the connection.
fn answers(stream: &mut TcpStream, [first, further]: [Duration; 2]) -> (Vec<(u16, String)>, bool) {
    let mut text = Vec::new();
    let mut part = [0; 4096];
    let mut limit = first;
    let closed = loop {
        let _ = stream.set_read_timeout(Some(limit));
        match stream.read(&mut part) {
            Ok(0) => break true,
            Ok(length) => {
                text.extend_from_slice(&part[..length]);
                limit = further;
            }
            Err(error) => {
                break !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
            }
        }
    };
    let text = String::from_utf8_lossy(&text).into_owned();
    let answers = text
        .split("SIP/2.0 ")
        .filter_map(|rest| {
            let status: u16 = rest.get(..3)?.parse().ok()?;
            Some((status, format!("SIP/2.0 {rest}")))
        })
        .collect();
    (answers, closed)
}

fn connect(sip: u16) -> TcpStream {
    TcpStream::connect(("127.0.0.1", sip)).expect("connection")
}

/// Both tables against a separate border per transport (a message received over UDP would be a retransmission there).
fn torture(transport: &str, judge: impl Fn(u16, &TortureCase, &mut Vec<String>)) {
    let Some(data) = testdata() else { return };
    let folder = scratch(&format!("torture-{transport}"));
    let (sip, trunk) = (free_port(), free_port());
    let border = border(
        &folder,
        &example("loopback.toml", sip, trunk, media_ports(100), ""),
        sip,
    );
    let cases = cases(&data);
    assert!(cases.len() >= 30, "the table has {} rows", cases.len());
    let mut failures = Vec::new();
    for case in &cases {
        judge(sip, case, &mut failures);
    }
    assert!(
        failures.is_empty(),
        "{}\nborder: {}",
        failures.join("\n"),
        border.log()
    );
}

#[test]
fn torture_over_udp() {
    let socket = std::cell::OnceCell::new();
    torture("udp", |sip, case, failures| {
        let udp = socket.get_or_init(|| Udp::new(sip));
        let (got, alive) = udp.ask(case);
        failures.extend(case.judge("UDP", &got));
        if !alive {
            failures.push(format!("{}: no OPTIONS over UDP after it", case.name));
        }
    });
}

#[test]
fn torture_over_tcp() {
    torture("tcp", |sip, case, failures| {
        let mut stream = connect(sip);
        stream.write_all(&case.bytes).expect("sent");
        let waits = case.is_response() || case.expected.contains("TCP wait");
        let closes = case.expected.contains("drop the connection");
        let limits = [waits, !closes].map(|short| if short { SILENCE } else { PATIENCE });
        let (got, closed) = answers(&mut stream, limits);
        failures.extend(case.judge("TCP", &got));
        if closes && !closed {
            failures.push(format!("{}: the connection stands", case.name));
        }
        let mut fresh = connect(sip);
        let local = fresh.local_addr().expect("address").to_string();
        let request = options("TCP", &local, &format!("tcp{}", case.name));
        fresh.write_all(request.as_bytes()).expect("sent");
        let (got, _) = answers(&mut fresh, [PATIENCE, SILENCE]);
        if got.first().map(|(status, _)| *status) != Some(200) {
            failures.push(format!("{}: no OPTIONS over TCP after it", case.name));
        }
    });
}

/// A peer that has closed only its sending side still receives responses.
#[test]
fn half_closed_connection_is_answered() {
    let folder = scratch("half-close");
    let sip = free_port();
    let border = border(
        &folder,
        &example("loopback.toml", sip, free_port(), media_ports(100), ""),
        sip,
    );
    for round in 0..20 {
        let mut stream = connect(sip);
        let local = stream.local_addr().expect("address").to_string();
        let request = [
            options("TCP", &local, &format!("half{round}a")),
            options("TCP", &local, &format!("half{round}b")),
        ]
        .concat();
        stream.write_all(request.as_bytes()).expect("sent");
        stream
            .shutdown(std::net::Shutdown::Write)
            .expect("half closed");
        let (got, closed) = answers(&mut stream, [PATIENCE; 2]);
        let statuses: Vec<u16> = got.iter().map(|(status, _)| *status).collect();
        assert_eq!(statuses, [200, 200], "round {round}: {}", border.log());
        assert!(closed, "the border ends its side then");
    }
}

/// IPv6 over both transports, and the keep-alives of RFC 5626: CRLF on a stream, STUN over UDP.
#[test]
fn ipv6_and_keep_alives() {
    if UdpSocket::bind("[::1]:0").is_err() {
        eprintln!("skipped: no IPv6 on this machine");
        return;
    }
    let folder = scratch("ipv6");
    let sip = free_port();
    let configuration = example("loopback.toml", sip, free_port(), media_ports(100), "")
        .replace(
            &format!("\"tcp:127.0.0.1:{sip}\""),
            &format!("\"tcp:127.0.0.1:{sip}\", \"udp:[::1]:{sip}\", \"tcp:[::1]:{sip}\""),
        )
        .replace(
            "allow = \"127.0.0.0/8\"",
            "allow = [\"127.0.0.0/8\", \"::1\"]",
        );
    let border = border(&folder, &configuration, sip);
    let socket = UdpSocket::bind("[::1]:0").expect("socket");
    socket.connect(("::1", sip)).expect("address");
    socket.set_read_timeout(Some(PATIENCE)).expect("timeout");
    let local = socket.local_addr().expect("address").to_string();
    let mut buffer = [0; 4096];
    let mut ask = |bytes: &[u8]| {
        socket.send(bytes).expect("sent");
        let length = socket
            .recv(&mut buffer)
            .unwrap_or_else(|error| panic!("{error}: {}", border.log()));
        buffer[..length].to_vec()
    };
    let answer = ask(options("UDP", &local, "six").as_bytes());
    assert_eq!(status(&String::from_utf8_lossy(&answer)), 200);
    let mut binding = vec![0, 1, 0, 0, 0x21, 0x12, 0xa4, 0x42];
    binding.extend(*b"keeps alive!");
    let answer = ask(&binding);
    assert_eq!((&answer[..2], answer.len()), (&[1, 1][..], 44));
    let mut stream = TcpStream::connect(("::1", sip)).expect("connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
    stream.write_all(b"\r\n\r\n").expect("sent");
    let mut pong = [0; 2];
    stream.read_exact(&mut pong).expect("a pong");
    assert_eq!(&pong, b"\r\n");
    let local = stream.local_addr().expect("address").to_string();
    stream
        .write_all(options("TCP", &local, "sixtcp").as_bytes())
        .expect("sent");
    let (got, _) = answers(&mut stream, [PATIENCE, SILENCE]);
    assert_eq!(got.first().map(|(status, _)| *status), Some(200));
}
