//! `hornwork run` as its supervisor sees it: readiness, reload, drain, exit codes.

mod common;

use common::{Process, answers_options, border, example, root, scratch};
use std::net::UdpSocket;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Waits until `condition` holds; panics with what the process said where it does not within ten seconds.
fn until(process: &Process, condition: impl Fn(&str) -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !condition(&process.said()) {
        assert!(Instant::now() < end, "waited in vain: {}", process.said());
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn run(file: &Path, more: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hornwork"))
        .args(["run", "-c"])
        .arg(file)
        .args(more)
        .stdin(Stdio::null())
        .output()
        .expect("the program starts")
}

fn error(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn it_is_ready_reloads_and_ends_in_order() {
    let folder = scratch("service");
    let socket = folder.join("notify");
    let notified = UnixDatagram::bind(&socket).expect("socket");
    notified
        .set_read_timeout(Some(Duration::from_secs(10)))
        .expect("timeout");
    let file = folder.join("hornwork.toml");
    let good = example("loopback.toml", 5360, 5380, (31000, 31099), "");
    std::fs::write(&file, &good).expect("file");
    let mut process = Process::start(
        Command::new(env!("CARGO_BIN_EXE_hornwork"))
            .args(["run", "-c"])
            .arg(&file)
            .env("NOTIFY_SOCKET", &socket)
            .stdin(Stdio::null()),
        &folder.join("log"),
    );
    let told = || {
        let mut bytes = [0; 100];
        let length = notified.recv(&mut bytes).expect("a notification");
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    };
    assert_eq!(told(), "READY=1");
    assert!(answers_options(5360), "ready means ready");
    assert!(
        process
            .said()
            .contains("listens on udp:127.0.0.1:5360, tcp:127.0.0.1:5360")
    );

    // A file with a mistake changes nothing, and the log says why.
    std::fs::write(&file, good.replace("allow", "alow")).expect("file");
    process.signal("HUP");
    until(&process, |said| said.contains("configuration_refused"));
    assert!(
        process.said().contains("did you mean `allow`?"),
        "{}",
        process.said()
    );
    assert!(answers_options(5360));

    // A good one moves the listening point.
    std::fs::write(&file, good.replace(":5360", ":5361")).expect("file");
    process.signal("HUP");
    until(&process, |said| said.contains("configuration_reloaded"));
    until(&process, |_| answers_options(5361));
    assert!(!answers_options(5360), "the old listening point is closed");

    process.signal("TERM");
    assert_eq!(told(), "STOPPING=1");
    assert_eq!(process.wait(Duration::from_secs(5)), Some(true));
    assert!(
        process.said().contains("drain_finished cut=0"),
        "{}",
        process.said()
    );
}

#[test]
fn the_log_can_be_json_and_names_no_secret() {
    let folder = scratch("service-json");
    let more = "[log]\nformat = \"json\"\nlevel = \"debug\"\n";
    let text = example("loopback-uc.toml", 5364, 5384, (31100, 31199), more);
    let mut process = border(&folder, &text, 5364);
    until(&process, |said| said.contains("socket_opened"));
    process.signal("INT");
    assert_eq!(process.wait(Duration::from_secs(5)), Some(true));
    let said = process.said();
    assert!(!said.contains("secret-1000"), "{said}");
    let mut events = 0;
    for line in said.lines().filter(|line| line.starts_with('{')) {
        let value: serde_json::Value = serde_json::from_str(line).expect("each line is an object");
        assert!(
            value["timestamp"].is_string() && value["level"].is_string(),
            "{line}"
        );
        events += usize::from(value["event"].is_string());
    }
    assert!(events >= 4, "{said}");
}

#[test]
fn what_cannot_run_says_why_and_what_to_do() {
    let folder = scratch("service-refused");
    let file = folder.join("hornwork.toml");
    assert_eq!(run(&file, &[]).status.code(), Some(2), "no such file");

    std::fs::write(&file, "[[interface]]\nname = 1\n").expect("file");
    let output = run(&file, &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        error(&output).contains("hornwork.toml:2:8:"),
        "{}",
        error(&output)
    );

    let taken = UdpSocket::bind("127.0.0.1:0").expect("socket");
    let port = taken.local_addr().expect("address").port();
    let text = example("loopback.toml", port, 5385, (31200, 31299), "");
    std::fs::write(&file, text).expect("file");
    let output = run(&file, &[]);
    assert_eq!(output.status.code(), Some(3));
    let said = error(&output);
    assert!(
        said.contains(&format!("cannot listen on 127.0.0.1:{port}")),
        "{said}"
    );
    assert!(said.contains("remedy:"), "{said}");

    let output = run(&root().join("examples/loopback.toml"), &["--role", "media"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(error(&output).contains("remedy:"));
    let output = run(
        &root().join("examples/loopback.toml"),
        &["--role", "nothing"],
    );
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn commands_of_later_versions_do_not_exist_yet() {
    for command in ["phone", "trace", "top"] {
        let output = Command::new(env!("CARGO_BIN_EXE_hornwork"))
            .arg(command)
            .output()
            .expect("the program starts");
        assert_eq!(output.status.code(), Some(2), "{command}");
    }
}

#[test]
fn the_packaged_configuration_and_unit_fit_each_other() {
    let packaging = root().join("packaging");
    let check = Command::new(env!("CARGO_BIN_EXE_hornwork"))
        .args(["check", "-c"])
        .arg(packaging.join("hornwork.toml"))
        .output()
        .expect("the program starts");
    assert!(check.status.success(), "{}", error(&check));
    let unit = std::fs::read_to_string(packaging.join("hornwork.service")).expect("unit");
    let user = std::fs::read_to_string(packaging.join("hornwork.sysusers")).expect("user");
    assert!(unit.contains("User=hornwork\n") && user.contains("\nu hornwork "));
    assert!(unit.contains("Type=notify\n") && unit.contains("NoNewPrivileges=yes\n"));
}

/// A SIP peer by hand.
struct Peer(UdpSocket);

impl Peer {
    fn new(port: u16) -> Peer {
        let socket = UdpSocket::bind(("127.0.0.1", port)).expect("socket");
        socket
            .set_read_timeout(Some(Duration::from_secs(5)))
            .expect("timeout");
        Peer(socket)
    }

    fn port(&self) -> u16 {
        self.0.local_addr().expect("address").port()
    }

    fn send(&self, to: u16, text: &str) {
        self.0
            .send_to(text.as_bytes(), ("127.0.0.1", to))
            .expect("sent");
    }

    /// The next message that begins so; others are passed over.
    fn expect(&self, start: &str) -> String {
        let mut bytes = [0; 4096];
        loop {
            let length = self
                .0
                .recv(&mut bytes)
                .unwrap_or_else(|e| panic!("no {start}: {e}"));
            let text = String::from_utf8_lossy(&bytes[..length]).into_owned();
            if text.starts_with(start) {
                return text;
            }
        }
    }
}

/// All header lines of this name.
fn lines(message: &str, name: &str) -> String {
    message
        .lines()
        .filter(|line| line.starts_with(&format!("{name}:")))
        .map(|line| format!("{line}\r\n"))
        .collect()
}

fn value(message: &str, name: &str) -> String {
    lines(message, name)
        .trim()
        .split_once(": ")
        .map_or_else(String::new, |(_, v)| v.to_owned())
}

#[test]
fn a_stop_waits_for_calls_and_a_second_one_does_not() {
    let folder = scratch("service-drain");
    let text = example("loopback-bypass.toml", 5368, 5388, (31300, 31399), "");
    let mut process = border(&folder, &text, 5368);
    let (caller, callee) = (Peer::new(0), Peer::new(5388));
    let port = caller.port();
    let invite = |call: &str| {
        format!(
            "INVITE sip:1@127.0.0.1:5368 SIP/2.0\r\nVia: SIP/2.0/UDP 127.0.0.1:{port};branch=z9hG4bK{call}\r\nMax-Forwards: 70\r\n\
             From: <sip:a@127.0.0.1>;tag=f{call}\r\nTo: <sip:1@127.0.0.1>\r\nCall-ID: {call}\r\nCSeq: 1 INVITE\r\n\
             Contact: <sip:a@127.0.0.1:{port}>\r\nContent-Length: 0\r\n\r\n"
        )
    };
    caller.send(5368, &invite("one"));
    let offered = callee.expect("INVITE");
    let contact = "Contact: <sip:b@127.0.0.1:5388>\r\n";
    let answer = |status: &str, request: &str, more: &str| {
        format!(
            "SIP/2.0 {status}\r\n{}{}To: {};tag=t\r\n{}{}{more}Content-Length: 0\r\n\r\n",
            lines(request, "Via"),
            lines(request, "From"),
            value(request, "To")
                .split(";tag")
                .next()
                .unwrap_or_default(),
            lines(request, "Call-ID"),
            lines(request, "CSeq"),
        )
    };
    callee.send(5368, &answer("200 OK", &offered, contact));
    let answered = caller.expect("SIP/2.0 200");
    let ack = format!(
        "ACK sip:1@127.0.0.1:5368 SIP/2.0\r\nVia: SIP/2.0/UDP 127.0.0.1:{port};branch=z9hG4bKack\r\nMax-Forwards: 70\r\n\
         From: <sip:a@127.0.0.1>;tag=fone\r\nTo: {}\r\nCall-ID: one\r\nCSeq: 1 ACK\r\nContent-Length: 0\r\n\r\n",
        value(&answered, "To")
    );
    caller.send(5368, &ack);
    callee.expect("ACK");

    process.signal("TERM");
    std::thread::sleep(Duration::from_millis(400));
    caller.send(5368, &invite("two"));
    let refused = caller.expect("SIP/2.0 503");
    assert!(
        refused.contains("Call-ID: two") && refused.contains("Retry-After:"),
        "{refused}"
    );
    assert_eq!(
        process.wait(Duration::from_millis(500)),
        None,
        "the call is still up"
    );

    process.signal("TERM");
    let bye = callee.expect("BYE");
    callee.send(5368, &answer("200 OK", &bye, ""));
    let bye = caller.expect("BYE");
    caller.send(5368, &answer("200 OK", &bye, ""));
    assert_eq!(
        process.wait(Duration::from_secs(3)),
        Some(true),
        "{}",
        process.said()
    );
}
