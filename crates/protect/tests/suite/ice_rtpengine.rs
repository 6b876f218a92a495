//! Interoperability with rtpengine as a full agent: it relays between two of our agents, controlled towards the
//! offerer and controlling towards the answerer, and RTP must arrive. Skipped, with a message, if rtpengine is not
//! installed.

use engine::{Entropy, Time};
use protect::ice::{Agent, IceCandidate, IceCredentials, IceRole};
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(30);

/// A program that ends with the test.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn socket() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let timeout = Some(Duration::from_millis(5));
    socket.set_read_timeout(timeout).unwrap();
    socket
}

fn text(value: &str) -> String {
    format!("{}:{value}", value.len())
}

/// Sends a command of the "ng" protocol; returns the description of its reply.
fn command(
    control: &UdpSocket,
    node: SocketAddr,
    cookie: &str,
    pairs: &[(&str, String)],
) -> String {
    let mut sorted: Vec<_> = pairs.to_vec();
    sorted.sort();
    let body: String = sorted
        .iter()
        .map(|(key, value)| text(key) + value)
        .collect();
    let message = format!("{cookie} d{body}e");
    let end = Instant::now() + PATIENCE;
    let mut buffer = [0; 8_192];
    let mut sent = None::<Instant>;
    loop {
        if sent.is_none_or(|sent| sent.elapsed() > Duration::from_secs(1)) {
            let _ = control.send_to(message.as_bytes(), node);
            sent = Some(Instant::now());
        }
        if let Ok(length) = control.recv(&mut buffer) {
            let reply = String::from_utf8_lossy(&buffer[..length]).into_owned();
            if reply.starts_with(&format!("{cookie} ")) {
                let Some((_, sdp)) = reply.split_once("3:sdp") else {
                    assert!(reply.contains("pong"), "{reply}");
                    return reply;
                };
                let (length, sdp) = sdp.split_once(':').unwrap();
                return sdp[..length.parse::<usize>().unwrap()].to_owned();
            }
        }
        assert!(Instant::now() < end, "rtpengine does not answer {message}");
    }
}

struct Side {
    socket: UdpSocket,
    address: SocketAddr,
    agent: Agent,
    received: Vec<Vec<u8>>,
}

impl Side {
    fn new(number: u64, role: IceRole) -> Side {
        let socket = socket();
        let address = socket.local_addr().unwrap();
        let mut entropy = Entropy::from_number(number);
        let local = IceCredentials::generate(&mut entropy);
        let mut agent = Agent::new(local, role, entropy);
        agent.add_local(address).unwrap();
        Side {
            socket,
            address,
            agent,
            received: Vec::new(),
        }
    }

    fn describe(&self) -> String {
        let local = self.agent.local();
        let mut sdp = format!(
            "v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\ns=-\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\nm=audio {} RTP/AVP 0\r\n\
             a=rtpmap:0 PCMU/8000\r\na=rtcp-mux\r\na=ice-ufrag:{}\r\na=ice-pwd:{}\r\na=ice-options:ice2\r\n",
            self.address.port(),
            local.fragment(),
            local.password()
        );
        for candidate in self.agent.candidates() {
            sdp.push_str(&format!("a=candidate:{candidate}\r\n"));
        }
        sdp
    }

    fn take(&mut self, sdp: &str, now: Time) {
        let value = |name: &str| {
            let found = sdp.lines().find_map(|line| line.strip_prefix(name));
            found.unwrap_or_else(|| panic!("no {name} in {sdp}"))
        };
        let credentials =
            IceCredentials::parse(value("a=ice-ufrag:"), value("a=ice-pwd:")).unwrap();
        self.agent
            .set_remote(credentials, sdp.contains("a=ice-lite"), now);
        for line in sdp.lines() {
            if let Some(candidate) = line.strip_prefix("a=candidate:") {
                let candidate = IceCandidate::parse(candidate.as_bytes()).unwrap();
                self.agent.add_remote(candidate).unwrap();
            }
        }
        self.agent.begin(now);
    }

    fn turn(&mut self, now: impl Fn() -> Time) {
        let mut buffer = [0; 2_048];
        if let Ok((length, from)) = self.socket.recv_from(&mut buffer) {
            let bytes = &buffer[..length];
            match bytes[0] {
                // Checks of rtpengine before it is signalled are rejected, as they must be.
                0..=3 => drop(self.agent.feed(0, bytes, from, now())),
                _ if bytes[1] & 0x7f == 0 => self.received.push(bytes.to_vec()),
                // RTCP sent by rtpengine itself.
                _ => {}
            }
        }
        self.agent.timeout(now());
        while let Some((_, to, bytes)) = self.agent.next_datagram() {
            self.socket.send_to(&bytes, to).unwrap();
        }
    }
}

#[test]
fn rtpengine_relays_between_two_full_agents() {
    let program = ["/usr/bin/rtpengine", "/usr/sbin/rtpengine"];
    let Some(program) = program.into_iter().find(|path| Path::new(path).is_file()) else {
        return println!("skipped: not installed: rtpengine");
    };
    let node = socket().local_addr().unwrap();
    let first = 18_100 + (std::process::id() % 40) as u16 * 40;
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("ice-rtpengine");
    std::fs::create_dir_all(&folder).unwrap();
    let log = std::fs::File::create(folder.join("log")).unwrap();
    let _program = Program(
        Command::new(program)
            .args(["--config-file=none", "--table=-1", "--foreground"])
            .args(["--log-stderr", "--num-threads=1", "--interface=127.0.0.1"])
            .arg(format!("--listen-ng={node}"))
            .arg(format!("--port-min={first}"))
            .arg(format!("--port-max={}", first + 39))
            .arg(format!("--pidfile={}", folder.join("pid").display()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap(),
    );
    let control = socket();
    let ping = [("command", text("ping"))];
    command(&control, node, "1", &ping);
    let start = Instant::now();
    let now = || Time::ZERO + start.elapsed();
    let mut a = Side::new(41, IceRole::Controlling);
    let mut b = Side::new(42, IceRole::Controlled);
    let list = |items: &[&str]| {
        format!(
            "l{}e",
            items.iter().map(|item| text(item)).collect::<String>()
        )
    };
    let common = |what: &str, sdp: String| {
        vec![
            ("command", text(what)),
            ("sdp", text(&sdp)),
            ("call-id", text("ice")),
            ("from-tag", text("a")),
            ("ICE", text("force")),
            ("rtcp-mux", list(&["offer", "require"])),
        ]
    };
    let offered = command(&control, node, "2", &common("offer", a.describe()));
    b.take(&offered, now());
    let mut answer = common("answer", b.describe());
    answer.push(("to-tag", text("b")));
    let answered = command(&control, node, "3", &answer);
    a.take(&answered, now());
    let mut sequence = 0u16;
    while a.received.is_empty() || b.received.is_empty() {
        assert!(
            start.elapsed() < PATIENCE,
            "{:?}\n{:?}\n{offered}\n{answered}\n{}",
            a.agent,
            b.agent,
            std::fs::read_to_string(folder.join("log")).unwrap_or_default()
        );
        a.turn(now);
        b.turn(now);
        if let (Some(one), Some(other)) = (a.agent.selected(), b.agent.selected()) {
            sequence += 1;
            let [high, low] = sequence.to_be_bytes();
            let mut packet = vec![0x80, 0, high, low, 0, 0, low, 0, 0, 0, 0, 9];
            packet.resize(172, 0x55);
            a.socket.send_to(&packet, one.remote).unwrap();
            b.socket.send_to(&packet, other.remote).unwrap();
        }
    }
    assert_eq!(
        (a.agent.role(), b.agent.role()),
        (IceRole::Controlling, IceRole::Controlled)
    );
    println!(
        "judged by rtpengine: {:?} {:?}",
        a.agent.selected(),
        b.agent.selected()
    );
}
