//! Media ports on a host with other programs: a port is in use only during a call.

use crate::common;
use crate::stalled::{Callee, Caller};

use common::{Process, border, example, free_port, media_ports, scratch};
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);

/// Runs the program to its end.
fn program(arguments: &[&str], file: &Path) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_hornwork"))
        .args(arguments)
        .arg(file)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let end = Instant::now() + PATIENCE;
    while matches!(child.try_wait(), Ok(None)) {
        if Instant::now() > end {
            let _ = child.kill();
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.wait_with_output().expect("its output")
}

fn output_text(output: &Output) -> String {
    [&output.stdout[..], &output.stderr]
        .map(String::from_utf8_lossy)
        .concat()
}

fn until(process: &Process, condition: impl Fn(&str) -> bool) {
    let end = Instant::now() + PATIENCE;
    while !condition(&process.log()) {
        assert!(Instant::now() < end, "waited in vain: {}", process.log());
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn write_file(folder: &Path, name: &str, text: &str) -> PathBuf {
    let file = folder.join(name);
    std::fs::write(&file, text).expect("file");
    file
}

/// A media node with these ports.
fn node((first, last): (u16, u16)) -> String {
    let port = free_port();
    format!(
        "[ng_server]\nlisten = \"udp:127.0.0.1:{port}\"\n[[ng_server.interface]]\nname = \"x\"\n\
         media = {{ address = \"127.0.0.1\", ports = \"{first}-{last}\" }}\n"
    )
}

#[test]
fn ports_claimed_by_another_hornwork_are_refused_until_it_ends() {
    let folder = scratch("ports-claimed");
    // The media node has a hundred ports more than the border.
    let (first, end) = media_ports(300);
    let last = end - 100;
    let texts = [(first, last), (first + 100, last)].map(|media| {
        let sip = free_port();
        (sip, example("loopback.toml", sip, free_port(), media, ""))
    });
    let [(one, text), (two, overlapping)] = texts;
    let mut running = border(&scratch("ports-first"), &text, one);
    // Neither a border nor a media node starts with some of these ports; the errors name the process that has them.
    let process = format!("(process {})", running.id());
    let file = write_file(&folder, "border.toml", &overlapping);
    let other = write_file(&folder, "node.toml", &node((first + 100, end)));
    for (arguments, file) in [
        (&["run", "-c"][..], &file),
        (&["run", "--role", "media", "-c"], &other),
    ] {
        let output = program(arguments, file);
        let log = output_text(&output);
        assert_eq!(output.status.code(), Some(3), "{log}");
        let claimed = format!("overlap with {first}-{last}, claimed by another Hornwork {process}");
        assert!(log.contains(&claimed) && log.contains("remedy:"), "{log}");
    }
    // `check` claims nothing, and a program's claims do not conflict with its own reload.
    assert_eq!(program(&["check", "-c"], &file).status.code(), Some(0));
    running.signal("HUP");
    until(&running, |log| log.contains("configuration_reloaded"));
    running.signal("KILL");
    assert_eq!(running.wait(PATIENCE), Some(false));
    drop(border(&folder, &overlapping, two));
}

#[test]
fn reload_claims_ports_before_use() {
    let folder = scratch("ports-reload");
    let [one, two] = [(); 2].map(|()| media_ports(100));
    let (sip, trunk) = (free_port(), free_port());
    let text = |media| example("loopback.toml", sip, trunk, media, "");
    let running = border(&folder, &text(one), sip);
    let other = free_port();
    let beside = example("loopback.toml", other, free_port(), two, "");
    let mut beside = border(&scratch("ports-beside"), &beside, other);
    write_file(&folder, "hornwork.toml", &text(two));
    running.signal("HUP");
    until(&running, |log| {
        let mut lines = log.lines();
        lines
            .any(|line| line.contains("configuration_refused") && line.contains("another Hornwork"))
    });
    beside.signal("KILL");
    beside.wait(PATIENCE);
    running.signal("HUP");
    until(&running, |log| log.contains("configuration_reloaded"));
    // The old ones are released, the new ones claimed.
    let third = free_port();
    let again = example("loopback.toml", third, free_port(), one, "");
    drop(border(&scratch("ports-again"), &again, third));
    let file = write_file(&folder, "second.toml", &node(two));
    let output = program(&["run", "--role", "media", "-c"], &file);
    assert_eq!(output.status.code(), Some(3), "{}", output_text(&output));
}

/// Several workers share their listening ports. A second program with the same file would get a part of the requests,
/// and BYEs of calls of the first one.
#[test]
fn listening_ports_of_several_workers_belong_to_one_program() {
    let folder = scratch("ports-workers");
    let (sip, trunk) = (free_port(), free_port());
    // Without media there are no claims.
    let bypass = "loopback-bypass.toml";
    let text = example(bypass, sip, trunk, media_ports(10), "[sip]\nworkers = 2\n");
    let mut running = border(&folder, &text, sip);
    let file = write_file(&folder, "second.toml", &text);
    let output = program(&["run", "-c"], &file);
    let log = output_text(&output);
    assert_eq!(output.status.code(), Some(3), "{log}");
    let refused = format!("cannot listen on udp:127.0.0.1:{sip}: another program has the port");
    assert!(log.contains(&refused) && log.contains("remedy:"), "{log}");
    running.signal("KILL");
    assert_eq!(running.wait(PATIENCE), Some(false));
    drop(border(&folder, &text, sip));
}

/// Sockets and media paths of a media node are those of its start, as those of a border.
#[test]
fn reload_of_a_media_node_names_the_settings_of_the_start() {
    let folder = scratch("ports-node-reload");
    let media = media_ports(100);
    let text = node(media);
    let file = write_file(&folder, "node.toml", &text);
    let mut program = Command::new(env!("CARGO_BIN_EXE_hornwork"));
    program.args(["run", "--role", "media", "-c"]).arg(&file);
    let running = Process::start(program.stdin(Stdio::null()), &folder.join("node.log"));
    until(&running, |log| log.contains("socket_opened"));
    write_file(&folder, "node.toml", &format!("{text}[media]\ndscp = 8\n"));
    running.signal("HUP");
    until(&running, |log| log.contains("configuration_reloaded"));
    let pending = "changes in [media] dscp take effect at the next start";
    until(&running, |log| log.contains(pending));
    // A path that does not serve an address of the reload.
    let (first, last) = media;
    let second = format!(
        "[[ng_server.interface]]\nname = \"y\"\n\
         media = {{ address = \"127.0.0.2\", ports = \"{first}-{last}\" }}\n[media]\nsockets = \"shared\"\n"
    );
    write_file(&folder, "node.toml", &format!("{text}{second}"));
    running.signal("HUP");
    until(&running, |log| {
        let mut refused = log.lines();
        refused.any(|line| line.contains("configuration_refused") && line.contains("127.0.0.2"))
    });
}

#[test]
fn ephemeral_ports_are_a_mistake() {
    let folder = scratch("ports-lent");
    let lent = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    let lent = lent.unwrap_or_default();
    let Some(Ok(first)) = lent.split_whitespace().next().map(str::parse::<u16>) else {
        eprintln!("skipped: the kernel does not say which ports it lends");
        return;
    };
    let first = first.next_multiple_of(2).max(2_000);
    let range = (first, first + 99);
    let text = example("loopback.toml", free_port(), free_port(), range, "");
    let file = write_file(&folder, "border.toml", &text);
    let lines = text.lines().zip(1..);
    let mut lines = lines.filter(|(line, _)| line.starts_with("media ="));
    let (_, line) = lines.next().expect("a line with media ports");
    for command in ["check", "run"] {
        let output = program(&[command, "-c"], &file);
        let log = output_text(&output);
        assert_eq!(output.status.code(), Some(2), "{command}: {log}");
        assert!(log.contains(&format!("border.toml:{line}:")), "{log}");
        assert!(
            log.contains("the ephemeral ports of other programs"),
            "{log}"
        );
        let remedy = "remedy: choose ports outside";
        let reserve = "sysctl -w net.ipv4.ip_local_reserved_ports=";
        assert!(log.contains(remedy) && log.contains(reserve), "{log}");
        assert!(log.contains(&format!("{}-{}", range.0, range.1)), "{log}");
    }
    // Together with another mistake of the same range.
    let odd = text.replace(
        &format!("{}-{}", range.0, range.1),
        &format!("{}-{}", range.0, range.1 - 1),
    );
    let output = program(&["check", "-c"], &write_file(&folder, "odd.toml", &odd));
    let log = output_text(&output);
    for part in [
        "pairs of an even and an odd port",
        "the ephemeral ports of other programs",
    ] {
        assert!(log.contains(part), "{part}: {log}");
    }
    // With a socket per port, as configured, it is a remark.
    let text = format!("{text}[media]\nsockets = \"per-port\"\n");
    let output = program(&["check", "-c"], &write_file(&folder, "border.toml", &text));
    let log = output_text(&output);
    assert_eq!(output.status.code(), Some(0), "{log}");
    assert!(log.contains("remark: media ports"), "{log}");
}

/// The program of a test claims its ports later than the test chooses them, and again after a restart.
#[test]
fn media_ports_of_a_test_are_not_given_to_another_one() {
    let (first, last) = media_ports(40);
    // More than there are, by tests that end at once.
    for _ in 0..400 {
        let other = std::thread::spawn(|| media_ports(40));
        let (begin, end) = other.join().expect("ports");
        assert!(
            end < first || last < begin,
            "{begin}-{end} and {first}-{last}"
        );
    }
}

/// Binds a port of 127.0.0.1 once it is free; returns the wait, too.
fn bind_when_free(port: u16) -> (UdpSocket, Duration) {
    let begun = Instant::now();
    loop {
        if let Ok(socket) = UdpSocket::bind(("127.0.0.1", port)) {
            return (socket, begun.elapsed());
        }
        assert!(begun.elapsed() < PATIENCE, "port {port} is not given back");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Whether the border answers an OPTIONS from this socket.
fn is_answered(socket: &UdpSocket, sip: u16) -> bool {
    let local = socket.local_addr().expect("address");
    let port = local.port();
    let request = format!(
        "OPTIONS sip:127.0.0.1:{sip} SIP/2.0\r\nVia: SIP/2.0/UDP {local};branch=z9hG4bKports{port};rport\r\nMax-Forwards: 70\r\n\
         From: <sip:probe@{local}>;tag=probe\r\nTo: <sip:127.0.0.1:{sip}>\r\nCall-ID: ports-{port}\r\nCSeq: 1 OPTIONS\r\n\
         Content-Length: 0\r\n\r\n"
    );
    let limit = Some(Duration::from_secs(2));
    socket.set_read_timeout(limit).expect("timeout");
    let border = ("127.0.0.1", sip);
    socket.send_to(request.as_bytes(), border).expect("sent");
    let mut bytes = [0; 2_048];
    let answer = socket.recv(&mut bytes);
    answer.is_ok_and(|length| bytes[..length].starts_with(b"SIP/2.0 200"))
}

/// A hundred calls, and the use of their ports by other programs meanwhile and afterwards.
fn ports_come_and_go(name: &str, sockets: &str) {
    let (sip, trunk) = (free_port(), free_port());
    let (first, last) = media_ports(408);
    let _called = Callee::at(trunk);
    let more = format!("[media]\nsockets = \"{sockets}\"\n");
    let text = example("loopback.toml", sip, trunk, (first, last), &more);
    let process = border(&scratch(name), &text, sip);
    let mut caller = Caller::new(sip);
    let calls: Vec<_> = (0..100).map(|_| caller.dial(9)).collect();
    // While a call has a port, other programs get "address in use".
    for call in &calls {
        assert!((first..=last).contains(&call.media));
        for port in [call.media, call.media + 1] {
            let error = UdpSocket::bind(("127.0.0.1", port)).expect_err("a media port");
            assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
        }
    }
    for call in &calls {
        caller.hang_up(call);
    }
    // Then another program gets it, with all datagrams to it: responses of the border, and others.
    let mut longest = Duration::ZERO;
    let foreign: Vec<UdpSocket> = (first..=last)
        .map(|port| {
            let (socket, took) = bind_when_free(port);
            longest = longest.max(took);
            socket
        })
        .collect();
    // A second, plus a reserve for a loaded machine.
    assert!(longest < Duration::from_secs(4), "{longest:?}");
    for socket in &foreign {
        assert!(is_answered(socket, sip), "{socket:?}: {}", process.log());
        let local = socket.local_addr().expect("address");
        sender().send_to(b"theirs", local).expect("sent");
        let mut bytes = [0; 64];
        assert_eq!(socket.recv(&mut bytes).expect("a datagram"), 6);
    }
    drop(process);
}

fn sender() -> UdpSocket {
    UdpSocket::bind("127.0.0.1:0").expect("socket")
}

#[test]
fn ports_are_free_soon_after_their_calls() {
    ports_come_and_go("ports-given-back", "auto");
}

#[test]
fn per_port_sockets_are_free_soon_after_their_calls() {
    ports_come_and_go("ports-given-back-each", "per-port");
}
