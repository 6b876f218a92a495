//! Stalled surroundings of the border: a log that is not read, and control clients that do not read. Packets and
//! signals go on.

use crate::common;

use common::{Process, answers_options, example, free_port, media_ports, scratch};
use std::io::{Read as _, Write as _};
use std::net::{TcpStream, UdpSocket};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Interval between calls, and the duration of the load.
const CALL_INTERVAL: Duration = Duration::from_millis(20);
const LOAD_DURATION: Duration = Duration::from_secs(10);
/// Packets of the established call in each direction.
const PACKETS: u32 = 50;

fn header<'m>(message: &'m str, name: &str) -> &'m str {
    message
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
        .unwrap_or_else(|| panic!("no {name} in {message}"))
}

/// The called side: answers every call at once, echoes its media, and counts the BYEs that it receives.
pub(crate) struct Callee {
    over: Arc<AtomicBool>,
    ended: Arc<AtomicU32>,
}

impl Callee {
    pub(crate) fn at(port: u16) -> Callee {
        let called = Callee {
            over: Arc::default(),
            ended: Arc::default(),
        };
        let (over, ended) = (called.over.clone(), called.ended.clone());
        let media = UdpSocket::bind("127.0.0.1:0").expect("socket");
        let media_port = media.local_addr().expect("address").port();
        let socket = UdpSocket::bind(("127.0.0.1", port)).expect("socket");
        for socket in [&media, &socket] {
            let limit = Some(Duration::from_millis(50));
            socket.set_read_timeout(limit).expect("timeout");
        }
        let media_over = over.clone();
        std::thread::spawn(move || {
            let mut bytes = [0; 2_048];
            while !media_over.load(Ordering::Relaxed) {
                if let Ok((length, from)) = media.recv_from(&mut bytes) {
                    let _ = media.send_to(&bytes[..length], from);
                }
            }
        });
        std::thread::spawn(move || {
            let mut bytes = [0; 8_192];
            while !over.load(Ordering::Relaxed) {
                let Ok((length, from)) = socket.recv_from(&mut bytes) else {
                    continue;
                };
                let message = String::from_utf8_lossy(&bytes[..length]).into_owned();
                let method = message.split(' ').next().unwrap_or_default();
                if matches!(method, "ACK" | "SIP/2.0") {
                    continue;
                }
                if method == "BYE" {
                    ended.fetch_add(1, Ordering::Relaxed);
                }
                let same: String = message
                    .lines()
                    .filter(|line| {
                        ["Via:", "From:", "Call-ID:", "CSeq:", "Record-Route:"]
                            .iter()
                            .any(|name| line.starts_with(name))
                    })
                    .map(|line| format!("{line}\r\n"))
                    .collect();
                let to = header(&message, "To");
                let tag = if to.contains("tag=") {
                    ""
                } else {
                    ";tag=called"
                };
                let sdp = match method {
                    "INVITE" => description(media_port),
                    _ => String::new(),
                };
                let answer = format!(
                    "SIP/2.0 200 OK\r\n{same}To: {to}{tag}\r\nContact: <sip:called@127.0.0.1:{port}>\r\n\
                     Content-Type: application/sdp\r\nContent-Length: {}\r\n\r\n{sdp}",
                    sdp.len()
                );
                let _ = socket.send_to(answer.as_bytes(), from);
            }
        });
        called
    }
}

impl Drop for Callee {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

fn description(port: u16) -> String {
    format!(
        "v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\ns=-\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\nm=audio {port} RTP/AVP 8\r\n"
    )
}

/// A caller with a socket of its own.
pub(crate) struct Caller {
    socket: UdpSocket,
    border: u16,
    numbers: u32,
}

/// An answered call.
pub(crate) struct EstablishedCall {
    number: u32,
    to: String,
    target: String,
    /// Media port of the border.
    pub(crate) media: u16,
}

impl Caller {
    pub(crate) fn new(border: u16) -> Caller {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("socket");
        let limit = Some(Duration::from_secs(2));
        socket.set_read_timeout(limit).expect("timeout");
        Caller {
            socket,
            border,
            numbers: 0,
        }
    }

    fn request(&self, method: &str, number: u32, to: &str, target: &str, sdp: &str) -> String {
        let local = self.socket.local_addr().expect("address");
        let sequence = if method == "BYE" { 2 } else { 1 };
        format!(
            "{method} {target} SIP/2.0\r\nVia: SIP/2.0/UDP {local};branch=z9hG4bK{method}{number}\r\nMax-Forwards: 70\r\n\
             From: <sip:caller@127.0.0.1>;tag=c{number}\r\nTo: {to}\r\nCall-ID: stalled-{number}-{}\r\nCSeq: {sequence} {method}\r\n\
             Contact: <sip:caller@{local}>\r\nContent-Type: application/sdp\r\nContent-Length: {}\r\n\r\n{sdp}",
            local.port(),
            sdp.len()
        )
    }

    fn send(&self, message: &str) {
        let border = ("127.0.0.1", self.border);
        let sent = self.socket.send_to(message.as_bytes(), border);
        sent.expect("sent");
    }

    /// The final response to a request of this call.
    fn response(&self, number: u32, method: &str) -> String {
        let mut bytes = [0; 8_192];
        loop {
            let length = self
                .socket
                .recv(&mut bytes)
                .unwrap_or_else(|error| panic!("call {number}: no response to {method}: {error}"));
            let message = String::from_utf8_lossy(&bytes[..length]).into_owned();
            let ours = header(&message, "Call-ID").starts_with(&format!("stalled-{number}-"));
            if ours
                && message.starts_with("SIP/2.0")
                && !message.starts_with("SIP/2.0 1")
                && header(&message, "CSeq").ends_with(method)
            {
                return message;
            }
        }
    }

    pub(crate) fn dial(&mut self, media: u16) -> EstablishedCall {
        self.numbers += 1;
        let number = self.numbers;
        let target = format!("sip:600@127.0.0.1:{}", self.border);
        let invite = self.request(
            "INVITE",
            number,
            "<sip:600@127.0.0.1>",
            &target,
            &description(media),
        );
        self.send(&invite);
        let answer = self.response(number, "INVITE");
        assert!(answer.starts_with("SIP/2.0 200"), "{answer}");
        let contact = header(&answer, "Contact");
        let target = contact.trim_start_matches('<');
        let target = target.split('>').next().unwrap_or_default().to_owned();
        let to = header(&answer, "To").to_owned();
        let ack = self.request("ACK", number, &to, &target, "");
        self.send(&ack);
        let media = answer
            .lines()
            .find_map(|line| {
                line.strip_prefix("m=audio ")?
                    .split(' ')
                    .next()?
                    .parse()
                    .ok()
            })
            .expect("a media port");
        EstablishedCall {
            number,
            to,
            target,
            media,
        }
    }

    pub(crate) fn hang_up(&self, call: &EstablishedCall) {
        let bye = self.request("BYE", call.number, &call.to, &call.target, "");
        self.send(&bye);
        let answer = self.response(call.number, "BYE");
        assert!(answer.starts_with("SIP/2.0 200"), "{answer}");
    }
}

/// Number of packets that return out of [`PACKETS`] sent, 20 ms apart.
fn count_echoes(socket: &UdpSocket, to: u16) -> u32 {
    let limit = Some(Duration::from_millis(5));
    socket.set_read_timeout(limit).expect("timeout");
    let mut back = 0;
    let mut bytes = [0; 2_048];
    let mut hear = |back: &mut u32| {
        while socket.recv(&mut bytes).is_ok() {
            *back += 1;
        }
    };
    for number in 0..PACKETS as u16 {
        let mut packet = vec![0x80, 8];
        packet.extend(number.to_be_bytes());
        packet.extend((u32::from(number) * 160).to_be_bytes());
        packet.extend(1_u32.to_be_bytes());
        packet.resize(172, 0xd5);
        socket.send_to(&packet, ("127.0.0.1", to)).expect("sent");
        std::thread::sleep(CALL_INTERVAL);
        hear(&mut back);
    }
    std::thread::sleep(Duration::from_millis(200));
    hear(&mut back);
    back
}

/// A border with this pipe as standard error.
fn border(file: &Path, stderr: std::io::PipeWriter, sip: u16) -> Child {
    let child = Command::new(env!("CARGO_BIN_EXE_hornwork"))
        .args(["run", "-c"])
        .arg(file)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(stderr)
        .spawn()
        .expect("the program starts");
    let end = Instant::now() + Duration::from_secs(30);
    while !answers_options(sip) {
        assert!(Instant::now() < end, "the border does not answer");
    }
    child
}

/// Fills a pipe completely.
fn fill(pipe: &mut std::io::PipeWriter) {
    let flags = rustix::fs::fcntl_getfl(pipe.as_fd()).expect("flags");
    let nonblocking = flags | rustix::fs::OFlags::NONBLOCK;
    rustix::fs::fcntl_setfl(pipe.as_fd(), nonblocking).expect("flags");
    for length in [4_096, 1] {
        while pipe.write(&vec![b'\n'; length]).is_ok() {}
    }
    // The border's end is the same open file description.
    rustix::fs::fcntl_setfl(pipe.as_fd(), flags).expect("flags");
}

fn signal(child: &Child, name: &str) {
    let id = child.id().to_string();
    let done = Command::new("kill")
        .args([&format!("-{name}"), &id])
        .status();
    assert!(done.is_ok_and(|done| done.success()));
}

/// Fifty calls per second, none of which may fail, while the media of the established call goes on.
fn carry_calls(
    caller: &mut Caller,
    established: &EstablishedCall,
    media: &UdpSocket,
    duration: Duration,
) {
    let to = established.media;
    let media = media.try_clone().expect("socket");
    let echo = std::thread::spawn(move || count_echoes(&media, to));
    let begun = Instant::now();
    let mut slowest = Duration::ZERO;
    let mut made = 0;
    while begun.elapsed() < duration {
        let dialled = Instant::now();
        let call = caller.dial(40_000);
        slowest = slowest.max(dialled.elapsed());
        caller.hang_up(&call);
        made += 1;
        std::thread::sleep(
            (begun + CALL_INTERVAL * made).saturating_duration_since(Instant::now()),
        );
    }
    assert!(
        slowest < Duration::from_millis(500),
        "a call waited {slowest:?}"
    );
    assert_eq!(
        echo.join().expect("media"),
        PACKETS,
        "packets that came back"
    );
}

#[test]
fn unread_log_blocks_no_packet_and_no_signal() {
    let folder = scratch("stalled-log");
    let (sip, trunk) = (free_port(), free_port());
    let file = folder.join("hornwork.toml");
    let more = "[drain]\ntimeout_s = 0\n";
    let text = example("loopback.toml", sip, trunk, media_ports(200), more);
    std::fs::write(&file, text).expect("file");
    let called = Callee::at(trunk);
    let (mut reader, mut writer) = std::io::pipe().expect("pipe");
    let mut child = border(&file, writer.try_clone().expect("pipe"), sip);
    let mut caller = Caller::new(sip);
    let media = UdpSocket::bind("127.0.0.1:0").expect("socket");
    let established = caller.dial(media.local_addr().expect("address").port());
    fill(&mut writer);
    carry_calls(&mut caller, &established, &media, LOAD_DURATION);
    // SIGTERM takes effect at once: with a drain time of zero the established call is ended, and then the program.
    let before = called.ended.load(Ordering::Relaxed);
    let stopped_at = Instant::now();
    signal(&child, "TERM");
    while called.ended.load(Ordering::Relaxed) == before {
        assert!(
            stopped_at.elapsed() < Duration::from_secs(1),
            "SIGTERM without effect"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    loop {
        if let Some(status) = child.try_wait().expect("its end") {
            assert!(status.success(), "{status}");
            break;
        }
        if stopped_at.elapsed() > Duration::from_secs(4) {
            let _ = child.kill();
            panic!("the program does not end");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(writer);
    let mut log = String::new();
    reader.read_to_string(&mut log).expect("the log");
    assert!(
        log.contains("call_offered") || log.contains("socket_opened"),
        "{log}"
    );
}

/// The summary at the start is longer than the free part of a pipe of one page that is nearly full, and `/dev/full`
/// takes nothing.
#[test]
fn standard_output_that_takes_nothing_stops_neither_start_nor_end() {
    let folder = scratch("stalled-output");
    let ng = free_port();
    let node = std::fs::read_to_string(common::root().join("examples/media-node.toml"));
    let (low, high) = media_ports(200);
    let node = node
        .expect("example")
        .replace("27000-32767", &format!("{low}-{high}"))
        .replace("udp:127.0.0.1:2223", &format!("udp:127.0.0.1:{ng}"))
        .replace(", \"tcp:127.0.0.1:2223\", \"ws:127.0.0.1:2224\"", "");
    let pings = |_: u16| {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("socket");
        let _ = socket.set_read_timeout(Some(Duration::from_millis(200)));
        let mut answer = [0; 512];
        let ping = b"1 d7:command4:pinge";
        socket.send_to(ping, ("127.0.0.1", ng)).is_ok() && socket.recv(&mut answer).is_ok()
    };
    let (sip, trunk) = (free_port(), free_port());
    let text = example("loopback.toml", sip, trunk, media_ports(200), "");
    type Probe<'p> = &'p dyn Fn(u16) -> bool;
    let serves: [(&str, &str, Probe<'_>); 2] =
        [("all", &text, &answers_options), ("media", &node, &pings)];
    for (role, text, is_served) in serves {
        let file = folder.join(format!("{role}.toml"));
        std::fs::write(&file, text).expect("file");
        let (full_reader, mut full) = std::io::pipe().expect("pipe");
        fill(&mut full);
        let (closed_reader, closed) = std::io::pipe().expect("pipe");
        drop(closed_reader);
        let device = std::fs::OpenOptions::new().write(true).open("/dev/full");
        let outputs: [(&str, Stdio); 3] = [
            ("full pipe", full.into()),
            ("closed pipe", closed.into()),
            ("full device", device.expect("/dev/full").into()),
        ];
        for (name, output) in outputs {
            let log = std::fs::File::create(folder.join("log")).expect("log");
            let mut child = Command::new(env!("CARGO_BIN_EXE_hornwork"))
                .args(["run", "--role", role, "-c"])
                .arg(&file)
                .stdin(Stdio::null())
                .stdout(output)
                .stderr(log)
                .spawn()
                .expect("hornwork");
            let end = Instant::now() + Duration::from_secs(30);
            while !is_served(sip) {
                let ended = child.try_wait().expect("its state");
                let log = std::fs::read_to_string(folder.join("log")).unwrap_or_default();
                assert!(
                    ended.is_none() && Instant::now() < end,
                    "{role}, {name}: {ended:?}\n{log}"
                );
                std::thread::sleep(Duration::from_millis(20));
            }
            signal(&child, "TERM");
            let end = Instant::now() + Duration::from_secs(10);
            while child.try_wait().expect("its state").is_none() {
                if Instant::now() > end {
                    let _ = child.kill();
                    panic!("{role}, {name}: the program does not end");
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        drop(full_reader);
    }
}

#[test]
fn lost_lines_are_reported_when_the_log_is_read_again() {
    let folder = scratch("stalled-lost-lines");
    let (sip, trunk) = (free_port(), free_port());
    let file = folder.join("hornwork.toml");
    // With a line per message a megabyte is filled soon.
    let more = "[log]\nlevel = \"debug\"\n";
    let text = example("loopback.toml", sip, trunk, media_ports(200), more);
    std::fs::write(&file, text).expect("file");
    let _called = Callee::at(trunk);
    let (mut reader, mut writer) = std::io::pipe().expect("pipe");
    let mut child = border(&file, writer.try_clone().expect("pipe"), sip);
    fill(&mut writer);
    drop(writer);
    let mut caller = Caller::new(sip);
    for _ in 0..2_500 {
        let call = caller.dial(40_000);
        caller.hang_up(&call);
    }
    let log = Arc::new(Mutex::new(Vec::new()));
    let read = log.clone();
    let reading = std::thread::spawn(move || {
        let mut part = [0; 65_536];
        while let Ok(length @ 1..) = reader.read(&mut part) {
            read.lock().expect("log").extend_from_slice(&part[..length]);
        }
    });
    // The log goes on: calls are in it behind the report.
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        let call = caller.dial(40_000);
        caller.hang_up(&call);
        std::thread::sleep(Duration::from_millis(200));
        let text = String::from_utf8_lossy(&log.lock().expect("log")).into_owned();
        let place = text.find("log_lines_dropped lines=");
        if place.is_some_and(|place| text[place..].contains("call_offered")) {
            break;
        }
        assert!(Instant::now() < end, "log_lines_dropped: {place:?}");
    }
    signal(&child, "TERM");
    assert!(child.wait().expect("its end").success());
    reading.join().expect("the log");
}

#[test]
fn control_clients_that_do_not_read_block_no_packet() {
    let folder = scratch("stalled-control");
    let (sip, trunk, control) = (free_port(), free_port(), free_port());
    let token = folder.join("token");
    std::fs::write(&token, "0123456789abcdef0123456789abcdef\n").expect("token");
    let owner_only = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&token, owner_only).expect("token");
    let file = folder.join("hornwork.toml");
    let more = format!(
        "[control]\nlisten = \"http:127.0.0.1:{control}\"\ntoken_file = \"{}\"\n",
        token.display()
    );
    let text = example("loopback.toml", sip, trunk, media_ports(200), &more);
    std::fs::write(&file, text).expect("file");
    let _called = Callee::at(trunk);
    let mut process = Process::start(
        Command::new(env!("CARGO_BIN_EXE_hornwork"))
            .args(["run", "-c"])
            .arg(&file)
            .stdin(Stdio::null()),
        &folder.join("log"),
    );
    let end = Instant::now() + Duration::from_secs(30);
    while !answers_options(sip) {
        assert!(Instant::now() < end, "{}", process.log());
    }
    let request = "GET /v1/conferences HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer 0123456789abcdef0123456789abcdef\r\n\r\n";
    let clients: Vec<TcpStream> = (0..16)
        .map(|_| {
            let mut client = TcpStream::connect(("127.0.0.1", control)).expect("control");
            let _ = client.write_all(request.repeat(50).as_bytes());
            client
        })
        .collect();
    let mut caller = Caller::new(sip);
    let media = UdpSocket::bind("127.0.0.1:0").expect("socket");
    let established = caller.dial(media.local_addr().expect("address").port());
    carry_calls(&mut caller, &established, &media, Duration::from_secs(3));
    caller.hang_up(&established);
    drop(clients);
    process.signal("TERM");
    assert_eq!(process.wait(Duration::from_secs(4)), Some(true));
}
