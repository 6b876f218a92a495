//! `hornwork lab link` between virtual interfaces: delay, loss, rate, order, offload, control, and its end. The judges
//! are other programs (ping, iperf3) and plain sockets. In network namespaces of this test; skipped without the rights.

use crate::common;

use common::{installed, scratch};
use serde_json::Value;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const PROGRAM: &str = env!("CARGO_BIN_EXE_hornwork");

/// Three namespaces: two hosts (10.9.1.1 and 10.9.1.2), and between them one with the ends `la` and `lb` of the link.
pub(crate) struct Hosts {
    /// Its namespaces are those of these processes: first host, second host, link.
    holders: Vec<Child>,
}

impl Hosts {
    /// `None` without the rights.
    pub(crate) fn new() -> Option<Hosts> {
        if !installed(&["unshare", "nsenter", "ip"]) {
            return None;
        }
        let mut hosts = Hosts {
            holders: Vec::new(),
        };
        for _ in 0..3 {
            let mut holder = Command::new("unshare")
                .args(["-n", "sh", "-c", "echo ready && exec sleep 300"])
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .ok()?;
            let mut line = String::new();
            let out = holder.stdout.take()?;
            let _ = BufReader::new(out).read_line(&mut line);
            hosts.holders.push(holder);
            if line.trim() != "ready" {
                eprintln!("skipped: no right to a network namespace");
                return None;
            }
        }
        let [a, b] = [0, 1].map(|index: usize| hosts.holders[index].id());
        let script = format!(
            "set -e; ip link add ea netns {a} type veth peer name la; ip link add eb netns {b} type veth peer name lb; \
             nsenter -t {a} -n sh -ec 'ip addr add 10.9.1.1/24 dev ea; ip link set ea addrgenmode none up; ip link set lo up'; \
             nsenter -t {b} -n sh -ec 'ip addr add 10.9.1.2/24 dev eb; ip link set eb addrgenmode none up; ip link set lo up'; \
             ip link set la addrgenmode none up; ip link set lb addrgenmode none up"
        );
        let done = hosts.command(2, "sh").args(["-c", &script]).output().ok()?;
        if !done.status.success() {
            let why = String::from_utf8_lossy(&done.stderr).into_owned();
            eprintln!("skipped: no right to network interfaces: {why}");
            return None;
        }
        Some(hosts)
    }

    /// A command in a namespace: 0 and 1 are the hosts, 2 that of the link.
    pub(crate) fn command(&self, index: usize, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        let id = self.holders[index].id().to_string();
        command.args(["-t", &id, "-n", program]);
        command
    }

    fn path(&self, index: usize) -> PathBuf {
        format!("/proc/{}/ns/net", self.holders[index].id()).into()
    }

    /// Starts the link and waits until it is up.
    pub(crate) fn link(&self, arguments: &[&str]) -> RunningLink {
        self.link_between(["la", "lb"], arguments)
    }

    /// The same with other ends.
    fn link_between(&self, [a, b]: [&str; 2], arguments: &[&str]) -> RunningLink {
        let mut command = self.command(2, PROGRAM);
        command
            .args(["lab", "link", "--a", a, "--b", b])
            .args(arguments);
        RunningLink::start(command)
    }

    /// A UDP socket in a namespace.
    fn socket(&self, index: usize, address: &str) -> UdpSocket {
        let (path, address) = (self.path(index), address.to_owned());
        let made = std::thread::spawn(move || {
            enter(&path);
            UdpSocket::bind(address).unwrap()
        });
        let socket = made.join().unwrap();
        socket
            .set_read_timeout(Some(Duration::from_millis(800)))
            .unwrap();
        // Where the host stops the receiver for a moment, no packet is lost.
        let _ = rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, 4 << 20);
        socket
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for holder in &mut self.holders {
            let _ = holder.kill();
            let _ = holder.wait();
        }
    }
}

pub(crate) struct RunningLink {
    child: Child,
    out: BufReader<std::process::ChildStdout>,
}

impl RunningLink {
    fn start(mut command: Command) -> RunningLink {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut text = String::new();
        while !text.contains("link is up") {
            let before = text.len();
            out.read_line(&mut text).unwrap();
            if text.len() == before {
                let mut why = String::new();
                let said = child
                    .stderr
                    .take()
                    .map(|mut said| said.read_to_string(&mut why));
                panic!("the link did not start: {text}{why} ({said:?})");
            }
        }
        assert!(text.contains("own error at"), "{text}");
        RunningLink { child, out }
    }

    fn signal(&self, name: &str) {
        // The namespace's program replaces nsenter, so that the process is the link's.
        let id = self.child.id().to_string();
        let done = Command::new("kill").args([name, &id]).status().unwrap();
        assert!(done.success());
    }

    /// Ends it with Ctrl-C; returns exit code and the rest of its output.
    pub(crate) fn end(self) -> (Option<i32>, String) {
        self.signal("-INT");
        self.ended()
    }

    /// Waits for its end; returns exit code and the rest of its output.
    fn ended(mut self) -> (Option<i32>, String) {
        let limit = Instant::now() + Duration::from_secs(60);
        while self.child.try_wait().unwrap().is_none() && Instant::now() < limit {
            std::thread::sleep(Duration::from_millis(10));
        }
        // One that does not end by itself has no exit code.
        let _ = self.child.kill();
        let mut text = String::new();
        std::io::Read::read_to_string(&mut self.out, &mut text).unwrap();
        let Output { status, stderr, .. } = self.child.wait_with_output().unwrap();
        text.push_str(&String::from_utf8_lossy(&stderr));
        (status.code(), text)
    }
}

/// Whether this process, and so the link, was started with SIGHUP ignored (nohup).
fn ignores_hang_up() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    u64::from_str_radix(ignored.unwrap().trim(), 16).unwrap() & 1 == 1
}

fn enter(path: &Path) {
    let namespace = std::fs::File::open(path).unwrap();
    rustix::thread::move_into_link_name_space(
        std::os::fd::AsFd::as_fd(&namespace),
        Some(rustix::thread::LinkNameSpaceType::Network),
    )
    .unwrap();
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// A packet that has arrived.
struct StreamArrival {
    number: u64,
    delay_ms: f64,
    /// Time of its arrival.
    at_s: f64,
}

/// Sends `count` packets of `size` bytes, one each `every`; returns those that arrive.
fn stream(hosts: &Hosts, count: u64, size: usize, every: Duration) -> Vec<StreamArrival> {
    let (from, to) = (
        hosts.socket(0, "10.9.1.1:0"),
        hosts.socket(1, "10.9.1.2:7000"),
    );
    let peer: SocketAddr = "10.9.1.2:7000".parse().unwrap();
    let begin = Instant::now();
    // The first packet resolves the address.
    from.send_to(&[0; 8], peer).unwrap();
    let mut room = [0; 2_048];
    let _ = to.recv(&mut room);
    std::thread::scope(|scope| {
        let receiver = scope.spawn(move || {
            let mut arrived = Vec::new();
            let mut room = [0; 2_048];
            while let Ok(length) = to.recv(&mut room) {
                let now = begin.elapsed().as_nanos() as u64;
                if length >= 16 {
                    let number = u64::from_be_bytes(room[..8].try_into().unwrap());
                    let sent = u64::from_be_bytes(room[8..16].try_into().unwrap());
                    arrived.push(StreamArrival {
                        number,
                        delay_ms: now.saturating_sub(sent) as f64 / 1e6,
                        at_s: now as f64 / 1e9,
                    });
                }
            }
            arrived
        });
        let mut packet = vec![0x5a; size];
        for number in 0..count {
            std::thread::sleep(every);
            packet[..8].copy_from_slice(&number.to_be_bytes());
            let now = begin.elapsed().as_nanos() as u64;
            packet[8..16].copy_from_slice(&now.to_be_bytes());
            from.send_to(&packet, peer).unwrap();
        }
        receiver.join().unwrap()
    })
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The link kept up. On a busy machine its own error, measured before, can be out of bounds.
fn assert_kept_up(code: Option<i32>, text: &str) {
    let faults: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("failed: "))
        .collect();
    let only_own = faults
        .iter()
        .all(|fault| fault.starts_with("failed: own error"));
    assert!(only_own, "{text}");
    assert_eq!(code, Some(i32::from(!faults.is_empty())), "{text}");
}

#[test]
fn delay_and_loss_are_those_of_the_settings() {
    let Some(hosts) = Hosts::new() else {
        return;
    };
    let file = scratch("link-delay").join("link.json");
    let link = hosts.link(&[
        "--delay",
        "50ms",
        "--loss",
        "3%/0%",
        "--seed",
        "7",
        "--json",
        file.to_str().unwrap(),
        "--late-bound-ms",
        "50",
    ]);
    let arrived = stream(&hosts, 2_000, 172, Duration::from_micros(700));
    let (code, text) = link.end();
    assert_kept_up(code, &text);
    let delay = median(arrived.iter().map(|packet| packet.delay_ms));
    let figures = json(&file);
    // A receiving thread of this test wakes as late as any thread of the host.
    let noise = figures["noise"]["p99_us"].as_f64().unwrap() / 1e3;
    assert!(
        delay >= 50.0 && delay < 50.1 + noise,
        "{delay} ms, noise {noise}"
    );
    let there = &figures["directions"][0];
    let (low, high) = (
        there["loss_interval"][0].as_f64().unwrap(),
        there["loss_interval"][1].as_f64().unwrap(),
    );
    // Twice the 95 % interval; the losses are those of the seed.
    let width = high - low;
    assert!(
        low - width / 2.0 < 3.0 && high + width / 2.0 > 3.0,
        "{there}"
    );
    let lost = 2_000 - arrived.len() as u64;
    assert!(
        there["lost"].as_u64().unwrap().abs_diff(lost) <= 1,
        "{lost} {there}"
    );
    assert_eq!(figures["directions"][1]["lost"], 0);
    let faults = figures["faults"].as_array().expect("faults").iter();
    let mut faults = faults.filter_map(serde_json::Value::as_str);
    assert!(
        faults.all(|fault| fault.starts_with("own error")),
        "{figures}"
    );
    assert!(figures["own_error"]["packets"].as_u64().unwrap() > 1_000);
}

#[test]
fn serial_line_has_its_rate_and_order_is_kept() {
    let Some(hosts) = Hosts::new() else {
        return;
    };
    let file = scratch("link-rate").join("link.json");
    let link = hosts.link(&[
        "--profile",
        "serial-64",
        "--delay",
        "5ms",
        "--jitter",
        "5ms",
        "--json",
        file.to_str().unwrap(),
        // The rate and the order are judged here. Other tests may stop the link for longer than its own bound of 1 ms.
        "--late-bound-ms",
        "100",
    ]);
    // 100 bytes of payload are 128 as IP and 135 with HDLC: 59.26 packets/s at 64 kbit/s. Offered are about 200.
    let arrived = stream(&hosts, 600, 100, Duration::from_millis(5));
    let seconds = arrived[arrived.len() - 1].at_s - arrived[0].at_s;
    let (code, text) = link.end();
    assert_kept_up(code, &text);
    let rate = (arrived.len() - 1) as f64 / seconds;
    assert!(
        (rate / (64_000.0 / 8.0 / 135.0) - 1.0).abs() < 0.03,
        "{rate} packets/s"
    );
    assert!(
        arrived
            .windows(2)
            .all(|pair| pair[0].number < pair[1].number)
    );
    let figures = json(&file);
    let full = figures["directions"][0]["queue_full"].as_u64().unwrap();
    assert_eq!(full, 600 - arrived.len() as u64);
}

#[test]
fn free_order_duplicates_and_corruption() {
    let Some(hosts) = Hosts::new() else {
        return;
    };
    let file = scratch("link-order").join("link.json");
    let link = hosts.link(&[
        "--delay",
        "10ms",
        "--jitter",
        "8ms",
        "--order",
        "free",
        "--duplicate",
        "5%",
        "--a-to-b",
        "corrupt=10%",
        "--seed",
        "7",
        "--json",
        file.to_str().unwrap(),
        "--late-bound-ms",
        "50",
    ]);
    let arrived = stream(&hosts, 1_500, 172, Duration::from_millis(1));
    let (code, text) = link.end();
    assert_kept_up(code, &text);
    assert!(
        arrived
            .windows(2)
            .any(|pair| pair[0].number > pair[1].number)
    );
    let there = &json(&file)["directions"][0];
    // The kernel of the receiver refuses a packet with a wrong checksum: partial checksums were completed.
    let number = |name: &str| there[name].as_u64().unwrap();
    assert!((90..220).contains(&number("corrupted")), "{there}");
    let expected = number("arrived") - number("corrupted") * 105 / 100;
    assert!(
        (arrived.len() as u64).abs_diff(expected) < 40,
        "{} of {expected}: {there}",
        arrived.len()
    );
}

/// ping measures the round trip; iperf3 a TCP connection with segmentation offload, whose segments are carried one by
/// one.
#[test]
fn other_programs_measure_the_same() {
    let Some(hosts) = Hosts::new() else {
        return;
    };
    if !installed(&["ping", "iperf3"]) {
        return;
    }
    let socket = scratch("link-peers").join("control");
    let link = hosts.link(&[
        "--rate",
        "20mbit/none",
        "--framing",
        "ethernet",
        "--delay",
        "25ms",
        "--control",
        socket.to_str().unwrap(),
        "--late-bound-ms",
        "50",
    ]);
    let ping = hosts
        .command(0, "ping")
        .args(["-c", "20", "-i", "0.1", "-q", "10.9.1.2"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&ping.stdout).into_owned();
    // The shortest round trip: the others include the load of this machine.
    let shortest = text.rsplit_once(" = ").unwrap().1;
    let shortest: f64 = shortest.split('/').next().unwrap().parse().unwrap();
    assert!((50.0..52.5).contains(&shortest), "{text}");
    let mut server = hosts
        .command(1, "iperf3")
        .args(["-s", "-1"])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let client = || {
        let mut client = hosts.command(0, "iperf3");
        client.args(["-c", "10.9.1.2", "-t", "3", "-J"]);
        client.output().unwrap()
    };
    // Until the server listens.
    let limit = Instant::now() + Duration::from_secs(20);
    let mut client_output = client();
    while !client_output.status.success() && Instant::now() < limit {
        std::thread::sleep(Duration::from_millis(100));
        client_output = client();
    }
    let _ = server.kill();
    let _ = server.wait();
    let figures: Value = serde_json::from_slice(&client_output.stdout).unwrap();
    let rate = figures["end"]["sum_received"]["bits_per_second"].as_f64();
    // Of 1,538 bytes on the line 1,448 are payload: at most 18.8 Mbit/s.
    let rate = rate.unwrap() / 1e6;
    assert!((12.0..18.9).contains(&rate), "{rate} Mbit/s");

    // Changed while it runs.
    let mut control = UnixStream::connect(&socket).unwrap();
    let mut answers = BufReader::new(control.try_clone().unwrap());
    let mut ask = |line: &str| {
        writeln!(control, "{line}").unwrap();
        let mut answer = String::new();
        answers.read_line(&mut answer).unwrap();
        answer.trim().to_owned()
    };
    assert_eq!(ask("set a-to-b delay=5ms rate=none"), "ok");
    assert!(ask("set delay=5parsecs").starts_with("error: delay"));
    assert!(ask("dance").starts_with("error: expected"));
    assert!(ask("set b-to-a loss-burst=3").contains("set loss"));
    let shown: Value = serde_json::from_str(&ask("show")).unwrap();
    assert_eq!(shown[0]["settings"]["delay_ms"], 5.0);
    assert_eq!(shown[1]["settings"]["delay_ms"], 25.0);
    let arrived = stream(&hosts, 100, 172, Duration::from_millis(5));
    let delay = median(arrived.iter().map(|packet| packet.delay_ms));
    // It was 25 ms.
    assert!((5.0..8.0).contains(&delay), "{delay}");
    assert_eq!(ask("stop"), "ok");
    let (code, text) = {
        let mut link = link;
        let mut text = String::new();
        std::io::Read::read_to_string(&mut link.out, &mut text).unwrap();
        (link.child.wait().unwrap().code(), text)
    };
    assert_kept_up(code, &text);
    assert!(!socket.exists());
}

/// Between two ports on loopback: the delay is that of the settings, and datagrams that the process did not read in
/// time are a fault.
#[test]
fn ports_are_ends_of_a_link() {
    // The link measures its own error in namespaces.
    let Some(_hosts) = Hosts::new() else {
        return;
    };
    let port = || UdpSocket::bind("127.0.0.1:0").unwrap();
    let (near, far) = (port(), port());
    let [a, b] = [port(), port()].map(|socket| socket.local_addr().unwrap());
    let address = |socket: &UdpSocket| socket.local_addr().unwrap();
    let ends = [
        format!("udp:{a}={}", address(&near)),
        format!("udp:{b}={}", address(&far)),
    ];
    let file = scratch("link-ports").join("link.json");
    let mut command = Command::new(PROGRAM);
    command.args(["lab", "link", "--a", &ends[0], "--b", &ends[1]]);
    command.args(["--delay", "20ms/5ms", "--json", file.to_str().unwrap()]);
    let link = RunningLink::start(command);
    for socket in [&near, &far] {
        socket
            .set_read_timeout(Some(Duration::from_secs(2)))
            .unwrap();
    }
    let mut room = [0; 100];
    let mut delays = [Vec::new(), Vec::new()];
    for _ in 0..20 {
        for (index, (from, to, end)) in [(&near, &far, a), (&far, &near, b)].into_iter().enumerate()
        {
            let begin = Instant::now();
            from.send_to(b"datagram", end).unwrap();
            assert_eq!(to.recv(&mut room).unwrap(), 8);
            delays[index].push(begin.elapsed().as_secs_f64() * 1e3);
        }
    }
    for (delays, least) in delays.into_iter().zip([20.0, 5.0]) {
        let shortest = delays.iter().copied().fold(f64::INFINITY, f64::min);
        assert!(shortest >= least && shortest < least + 5.0, "{delays:?}");
    }
    // Above the receive buffer of the stopped process: 16 MiB with the right to it, less without.
    link.signal("-STOP");
    for _ in 0..30_000 {
        let _ = near.send_to(&[0; 1_000], a);
    }
    link.signal("-CONT");
    std::thread::sleep(Duration::from_millis(300));
    let (code, text) = link.end();
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("the kernel dropped"), "{text}");
}

/// Between two TUN devices, each moved to the namespace of its host.
#[test]
fn tun_devices_are_ends_of_a_link() {
    let Some(hosts) = Hosts::new() else {
        return;
    };
    if !installed(&["ping"]) || !Path::new("/dev/net/tun").exists() {
        return;
    }
    let link = hosts.link_between(
        ["tun:ta", "tun:tb"],
        &["--delay", "20ms", "--late-bound-ms", "50"],
    );
    for (index, device) in ["ta", "tb"].into_iter().enumerate() {
        let holder = hosts.holders[index].id();
        let own = index + 1;
        let peer = 2 - index;
        let script = format!(
            "set -e; ip link set {device} netns {holder}; nsenter -t {holder} -n sh -ec \
             'ip addr add 10.9.2.{own} peer 10.9.2.{peer} dev {device}; ip link set {device} up'"
        );
        let done = hosts
            .command(2, "sh")
            .args(["-c", &script])
            .output()
            .unwrap();
        assert!(
            done.status.success(),
            "{}",
            String::from_utf8_lossy(&done.stderr)
        );
    }
    let ping = hosts
        .command(0, "ping")
        .args(["-q", "-c", "20", "-i", "0.02", "10.9.2.2"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ping.stdout).into_owned();
    assert!(said.contains(" 0% packet loss"), "{said}");
    let shortest = said
        .split("mdev = ")
        .nth(1)
        .and_then(|times| times.split('/').next());
    let shortest: f64 = shortest.unwrap().parse().unwrap();
    assert!((40.0..45.0).contains(&shortest), "{said}");
    let (code, text) = link.end();
    assert_kept_up(code, &text);
}

/// An interface that goes away ends the link. The figures until then are printed and written, with the reason.
#[test]
fn figures_outlive_an_interface_that_goes_away() {
    let Some(hosts) = Hosts::new() else {
        return;
    };
    let file = scratch("link-gone").join("link.json");
    let link = hosts.link(&["--delay", "1ms", "--json", file.to_str().unwrap()]);
    let arrived = stream(&hosts, 50, 172, Duration::from_millis(2));
    assert!(arrived.len() > 40, "{}", arrived.len());
    let removed = hosts
        .command(2, "ip")
        .args(["link", "del", "lb"])
        .status()
        .unwrap();
    assert!(removed.success());
    let (code, text) = link.ended();
    assert_eq!(code, Some(3), "{text}");
    assert!(
        text.contains("a-to-b") && text.contains("an end of the link failed"),
        "{text}"
    );
    let record = json(&file);
    let offered = record["directions"][0]["offered"].as_u64().unwrap();
    assert!(offered > 50, "{record}");
    assert_eq!(record["kept_up"], false);
    let faults = record["faults"].to_string();
    assert!(faults.contains("an end of the link failed"), "{faults}");
}

/// A terminal that is closed ends its link: a second one between the same interfaces would carry each packet again.
#[test]
fn link_ends_with_its_terminal() {
    let Some(hosts) = Hosts::new() else {
        return;
    };
    if ignores_hang_up() {
        eprintln!("skipped: SIGHUP is ignored");
        return;
    }
    let link = hosts.link(&["--delay", "1ms", "--late-bound-ms", "50"]);
    link.signal("-HUP");
    let (code, text) = link.ended();
    assert_kept_up(code, &text);
}

/// A stopped process cannot keep up, and says so.
#[test]
fn link_that_cannot_keep_up_fails() {
    let Some(hosts) = Hosts::new() else {
        return;
    };
    let file = scratch("link-stopped").join("link.json");
    let link = hosts.link(&["--delay", "1ms", "--json", file.to_str().unwrap()]);
    std::thread::scope(|scope| {
        let traffic = scope.spawn(|| stream(&hosts, 1_000, 172, Duration::from_millis(1)));
        std::thread::sleep(Duration::from_millis(300));
        link.signal("-STOP");
        std::thread::sleep(Duration::from_millis(400));
        link.signal("-CONT");
        traffic.join().unwrap();
    });
    let (code, text) = link.end();
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("cannot keep up"), "{text}");
    // The packets of the pause are late, and none is lost in the link. Drops in the buffer of the receiver do not count
    // here.
    let direction = &json(&file)["directions"][0];
    let offered = direction["offered"].as_u64().unwrap();
    assert!(offered >= 1_000, "{direction}");
    assert_eq!(direction["arrived"].as_u64(), Some(offered), "{direction}");
}

#[test]
fn interfaces_and_namespaces_are_unchanged_after_kill_and_interrupt() {
    let Some(hosts) = Hosts::new() else {
        return;
    };
    let state = || {
        let links = hosts
            .command(2, "ip")
            .args(["-d", "link"])
            .output()
            .unwrap();
        let names = Command::new("ip").args(["netns", "list"]).output().unwrap();
        (
            String::from_utf8_lossy(&links.stdout).into_owned(),
            names.stdout,
        )
    };
    // The carrier of a veth comes up a moment after its ends.
    for _ in 0..100 {
        if !state().0.contains("NO-CARRIER") {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let before = state();
    let (code, text) = hosts.link(&["--profile", "wifi"]).end();
    assert_kept_up(code, &text);
    assert_eq!(state().0, before.0);
    let mut killed = hosts.link(&["--profile", "lte"]);
    killed.child.kill().unwrap();
    killed.child.wait().unwrap();
    // The kernel removes its devices a moment later.
    let limit = Instant::now() + Duration::from_secs(10);
    while state().0 != before.0 && Instant::now() < limit {
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(state().0, before.0);
}

fn refused(arguments: &[&str]) -> (Option<i32>, String) {
    let out = Command::new(PROGRAM)
        .args(["lab", "link"])
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stderr).into_owned();
    (out.status.code(), text)
}

#[test]
fn bad_values_and_missing_interfaces_have_their_exit_codes() {
    let ends = ["--a", "no-such-a", "--b", "no-such-b"];
    let with = |more: &[&str]| refused(&[&ends[..], more].concat());
    for bad in [
        &["--rate", "fast"][..],
        &["--delay", "20"],
        &["--loss", "200%"],
        &["--framing", "x25"],
        &["--profile", "moon"],
        &["--seconds", "-1"],
        &["--a-to-b", "delay"],
        &["--loss-trace", "/nonexistent"],
        &["--queue", "x"],
    ] {
        let (code, text) = with(bad);
        assert_eq!(code, Some(2), "{bad:?}: {text}");
    }
    // Values without effect are refused with the remedy, in the words of the option.
    for (bad, words) in [
        (
            &["--framing", "hdlc"][..],
            "--framing has no effect without a rate",
        ),
        (&["--loss-burst", "3"], "set loss"),
        (
            &["--rate", "none/64kbit", "--a-to-b", "queue=9"],
            "--a-to-b: queue",
        ),
        (
            &["--delay", "1ms", "--jitter", "5ms"],
            "set delay to at least 5ms",
        ),
    ] {
        let (code, text) = with(bad);
        assert!(code == Some(2) && text.contains(words), "{bad:?}: {text}");
    }
    // It has one in the direction with a rate: only the interfaces are missing.
    let (code, text) = with(&["--rate", "64kbit/none", "--framing", "hdlc"]);
    assert_eq!(code, Some(3), "{text}");
    assert_eq!(refused(&["--a", "x"]).0, Some(2));
    let (code, text) = with(&["--seconds", "1"]);
    assert_eq!(code, Some(3), "{text}");
    assert!(
        text.contains("no-such-a") && text.contains("remedy"),
        "{text}"
    );
}

/// The commands of the how-to page, as they are written, in namespaces of their own.
#[test]
fn how_to_page_is_true() {
    if !installed(&["unshare", "ip", "ping"]) || Hosts::new().is_none() {
        return;
    }
    let page = common::root().join("docs/how-to/emulate-a-network.md");
    let page = std::fs::read_to_string(page).unwrap();
    let mut fenced = false;
    // A link of the program, no function of the shell: the signal is for the program.
    let mut script = String::from(
        "set -e\nmount -t tmpfs tmpfs /run\nmkdir bin\nln -s \"$HORNWORK\" bin/hornwork\nexport PATH=\"$PWD/bin:$PATH\"\n",
    );
    for line in page.lines() {
        if line.starts_with("```") {
            fenced = line == "```sh";
        } else if fenced && line.starts_with("hornwork lab link") {
            // "Meanwhile, in another terminal".
            script.push_str(&format!("{line} > link.log & link=$!\n"));
            script.push_str(
                "for n in $(seq 300); do grep -q 'link is up' link.log && break; sleep 0.1; done\n",
            );
        } else if fenced {
            script.push_str(&format!("{line}\n"));
            if line.contains("ping") {
                script.push_str("kill -INT $link; wait $link || true\n");
            }
        }
    }
    let folder = scratch("link-guide");
    let out = Command::new("unshare")
        .args(["-n", "-m", "bash", "-c", &script])
        .current_dir(&folder)
        .env("HORNWORK", PROGRAM)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let why = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success(), "{text}{why}");
    let (_, times) = text
        .rsplit_once(" = ")
        .unwrap_or_else(|| panic!("{text}{why}"));
    let least: f64 = times.split('/').next().unwrap().parse().unwrap();
    assert!((24.5..30.0).contains(&least), "{text}");
    assert!(folder.join("link.json").exists());
}
