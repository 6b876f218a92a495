//! Shares of an interface: bulk traffic that fills a link causes voice loss without shares, and none with
//! `hornwork isolate`. On a pair of virtual links between two network namespaces; skipped without the rights.

use crate::common;

use common::{installed, scratch};
use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const PROGRAM: &str = env!("CARGO_BIN_EXE_hornwork");
/// Rate of the link in the notation of `tc`.
const LINK: &str = "5mbit";
/// Voice: packets, octets per packet, and packets per second (0.96 Mbit/s with headers).
const VOICE: (u32, usize, u32) = (1_500, 200, 500);
/// Bulk: for the same time, at more than twice the rate of the link.
const BULK: (u32, usize, u32) = (3_600, 1_400, 1_200);

/// Two namespaces, `va` here and `vb` there, with the commands in `$1`; prints their processes, and keeps them until
/// its input ends.
const SET_UP: &str = r#"
set -e
ip link add va type veth peer name vb
unshare -n sleep 300 &
far=$!
trap 'kill $far' EXIT
while [ "$(readlink /proc/$far/ns/net)" = "$(readlink /proc/$$/ns/net)" ]; do sleep 0.02; done
ip link set vb netns $far
ip addr add 10.9.0.1/24 dev va
ip link set va up
there="nsenter --net=/proc/$far/ns/net"
$there ip addr add 10.9.0.2/24 dev vb
$there ip link set vb up
eval "$1"
echo "$$ $far"
read -r end || true
"#;

/// Voice loss, percent, with a queueing discipline set up by these commands. `None` without the rights.
fn voice_loss(set_up: &str) -> Option<f64> {
    let mut networks = namespace()?
        .args(["sh", "-c", SET_UP, "sh", set_up])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(networks.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let mut ids = line.split_whitespace();
    let (Some(here), Some(there)) = (ids.next(), ids.next()) else {
        panic!("the networks could not be set up: {line:?}");
    };
    let counts = std::thread::scope(|scope| {
        let heard = scope.spawn(|| {
            enter(there);
            receive_packets()
        });
        scope.spawn(|| {
            enter(here);
            send();
        });
        heard.join().unwrap()
    });
    drop(networks.stdin.take());
    assert!(networks.wait().unwrap().success());
    let [voice, bulk] = counts.map(f64::from);
    // The link was full: fewer packets were received than sent, but many.
    assert!(bulk > 500.0 && bulk < f64::from(BULK.0) * 0.9, "{bulk}");
    Some(100.0 - voice / f64::from(VOICE.0) * 100.0)
}

/// A command in a network namespace; `None` without the rights.
fn namespace() -> Option<Command> {
    let script = "ip link add va type veth peer name vb && tc qdisc add dev va root handle 1: htb default 30";
    if !installed(&["unshare", "ip", "tc"]) {
        return None;
    }
    let able = Command::new("unshare")
        .args(["-n", "sh", "-c", script])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    if !able.is_ok_and(|status| status.success()) {
        eprintln!("skipped: no right to a network namespace, or no htb in this kernel");
        return None;
    }
    let mut command = Command::new("unshare");
    command.arg("-n");
    Some(command)
}

#[test]
fn undivided_link_loses_voice_under_bulk() {
    let Some(lost) = voice_loss(&format!(
        "tc qdisc add dev va root handle 1: tbf rate {LINK} burst 16kb limit 60kb && tc qdisc add dev va parent 1:1 pfifo limit 40"
    )) else {
        return;
    };
    assert!(lost > 8.0, "{lost} % lost");
}

#[test]
fn shares_prevent_voice_loss() {
    let words = format!("{PROGRAM} isolate va --rate {LINK} --do apply");
    if let Some(lost) = voice_loss(&words) {
        assert!(lost <= 0.0, "{lost} % lost");
    }
}

/// Applying twice gives one setup; removing leaves none; foreign setups are kept.
#[test]
fn applied_setup_can_be_removed_and_foreign_one_is_kept() {
    let Some(mut command) = namespace() else {
        return;
    };
    let script = format!(
        "set -e; ip link add va type veth peer name vb; {PROGRAM} isolate va --rate {LINK} --do apply; \
         {PROGRAM} isolate va --rate 10mbit --do apply; tc class show dev va; {PROGRAM} isolate va --do remove; \
         {PROGRAM} isolate va --do remove; echo left; tc qdisc show dev va; tc qdisc add dev va root handle 7: htb; \
         ! {PROGRAM} isolate va --rate {LINK} --do apply; ! {PROGRAM} isolate va --do remove; tc qdisc show dev va"
    );
    let log = command.args(["sh", "-c", &script]).output().unwrap();
    let text = String::from_utf8_lossy(&log.stdout).into_owned();
    let why = String::from_utf8_lossy(&log.stderr).into_owned();
    assert!(log.status.success(), "{text}\n{why}");
    let (applied, left) = text.split_once("left").unwrap();
    assert_eq!(applied.matches("class htb").count(), 4, "{text}");
    assert!(applied.contains("rate 10Mbit"), "{text}");
    assert!(!left.contains("4857:") && left.contains("htb 7:"), "{text}");
    assert!(
        why.contains("already has another queueing discipline (qdisc htb 7:"),
        "{why}"
    );
}

#[test]
fn commands_are_only_shown_by_default() {
    let log = Command::new(PROGRAM)
        .args([
            "isolate", "lo", "--rate", "100mbit", "--voice", "60", "--others", "35",
        ])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&log.stdout);
    assert!(log.status.success());
    assert!(text.contains("tc class add dev lo parent 4857:1 classid 4857:10 htb rate 60000000bit ceil 100000000bit prio 0"));
    assert!(text.contains("nothing was changed"), "{text}");
}

/// The experiment: voice beside bulk, shown without shares and judged with them.
#[test]
fn experiment_measures_voice_beside_bulk() {
    let folder = scratch("isolation");
    let lab = |words: &[&str]| {
        let log = Command::new(PROGRAM)
            .args(["lab", "run", "isolation"])
            .args(words)
            .args(["--json", "-", "--set", "streams.duration_seconds=4"])
            .args(["--set", "streams.count=20", "--set", "link.rate_mbit=5"])
            .current_dir(&folder)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&log.stdout).into_owned();
        let why = String::from_utf8_lossy(&log.stderr).into_owned();
        (log.status.code(), text, why)
    };
    let (code, _, why) = lab(&["--simulate"]);
    assert_eq!(code, Some(2), "{why}");
    assert!(why.contains("remove --simulate"), "{why}");
    // Jitter depends on the machine here, since a thread may not be scheduled.
    let words = ["--set", "thresholds.jitter_p99_ms="];
    if namespace().is_none() {
        let (code, _, why) = lab(&words);
        assert_eq!(code, Some(3), "{why}");
        assert!(why.contains("CAP_NET_ADMIN"), "{why}");
        return;
    }
    let (code, text, why) = lab(&words);
    assert!(matches!(code, Some(0 | 1)), "{text}\n{why}");
    let run: serde_json::Value = serde_json::from_str(&text).unwrap();
    // The bound of one level cannot be left out; its failure may be the machine's.
    let judged = run["bounds"].as_array().unwrap();
    let of_loss = judged
        .iter()
        .filter(|bound| bound["name"] == "lost_percent");
    assert!(
        of_loss.clone().all(|bound| bound["holds"] == true),
        "{text}"
    );
    assert_eq!(of_loss.count(), 2, "{text}");
    let trials = run["trials"].as_array().unwrap();
    let lost = |at: usize| trials[at]["lost_percent"].as_f64().unwrap();
    assert!(lost(0) > 2.0 && lost(1) <= 0.0, "{} {}", lost(0), lost(1));
    let remarks = trials[1]["remarks"].to_string();
    assert!(remarks.contains("emulated at 5 Mbit/s"), "{remarks}");
}

/// A link that is slower than the voice itself: no share saves it.
#[test]
fn shares_below_the_voice_fail_the_experiment() {
    if namespace().is_none() {
        return;
    }
    let folder = scratch("isolation-broken");
    for (rate, code) in [("5", 0), ("1", 1)] {
        let rate = format!("link.rate_mbit={rate}");
        let log = Command::new(PROGRAM)
            .args(["lab", "run", "isolation", "--json", "-", "--set", &rate])
            .args(["--set", "streams.duration_seconds=2"])
            .args(["--set", "streams.count=40"])
            // Jitter depends on the machine.
            .args(["--set", "thresholds.jitter_p99_ms=", "--set"])
            .arg("thresholds.figure=[{ name = \"lost_percent\", at = 1, most = 0 }]")
            .current_dir(&folder)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&log.stdout).into_owned();
        let why = String::from_utf8_lossy(&log.stderr).into_owned();
        assert_eq!(log.status.code(), Some(code), "{rate}: {text}\n{why}");
        let run: serde_json::Value = serde_json::from_str(&text).unwrap();
        let bound = &run["bounds"][0];
        assert_eq!(
            (&bound["holds"], &bound["at"]),
            (&(code == 0).into(), &1.0.into()),
            "{bound}"
        );
    }
}

#[test]
fn invalid_requests_are_refused_with_reason() {
    let folder = scratch("isolate");
    let file = folder.join("same.toml");
    let points =
        "[[interface]]\nname = \"a\"\nlisten = \"udp:127.0.0.1:5060\"\n[media]\ndscp = 24\n";
    std::fs::write(&file, points).unwrap();
    let file = file.display().to_string();
    let cases: [(&[&str], i32, &str); 6] = [
        (&["nosuch0"], 3, "no network interface \"nosuch0\""),
        (&["../lo"], 3, "no network interface"),
        (&["lo"], 2, "set --rate"),
        (&["lo", "--rate", "fast"], 2, "is not a rate"),
        (
            &["lo", "--rate", "1mbit", "--vlan-priorities", "5,3"],
            2,
            "is not a VLAN interface",
        ),
        (
            &["lo", "--rate", "1mbit", "-c", &file],
            2,
            "cannot be distinguished",
        ),
    ];
    for (words, code, why) in cases {
        let log = Command::new(PROGRAM)
            .arg("isolate")
            .args(words)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&log.stderr).into_owned();
        assert_eq!(log.status.code(), Some(code), "{words:?}: {text}");
        assert!(text.contains(why), "{words:?}: {text}");
    }
}

/// Moves this thread, and those that it starts, into the network namespace of a process.
fn enter(process: &str) {
    let network = std::fs::File::open(format!("/proc/{process}/ns/net")).unwrap();
    let kind = Some(rustix::thread::LinkNameSpaceType::Network);
    rustix::thread::move_into_link_name_space(network.as_fd(), kind).unwrap();
}

/// Numbers of received voice and bulk packets.
fn receive_packets() -> [u32; 2] {
    let sockets = [5_004, 9_000].map(|port| UdpSocket::bind(("10.9.0.2", port)).unwrap());
    let mut counts = [0_u32; 2];
    let begun = Instant::now();
    let mut last = Instant::now();
    let mut buffer = [0; 2_048];
    for socket in &sockets {
        socket.set_nonblocking(true).unwrap();
    }
    // Until both have been silent for a while, and at most as long as a test may take.
    while last.elapsed() < Duration::from_secs(2) && begun.elapsed() < Duration::from_secs(20) {
        let mut any = false;
        for (socket, count) in sockets.iter().zip(&mut counts) {
            while socket.recv(&mut buffer).is_ok() {
                *count += 1;
                any = true;
            }
        }
        match any {
            true => last = Instant::now(),
            false => std::thread::sleep(Duration::from_micros(500)),
        }
    }
    counts
}

fn send() {
    // The receiver needs a moment to start.
    std::thread::sleep(Duration::from_millis(500));
    let stream = |(count, length, rate): (u32, usize, u32), port: u16, point: u8| {
        let socket = UdpSocket::bind("10.9.0.1:0").unwrap();
        rustix::net::sockopt::set_ip_tos(&socket, point << 2).unwrap();
        // A full queue drops bulk; a blocking sender would not fill the link.
        socket.set_nonblocking(true).unwrap();
        let to = SocketAddr::from(([10, 9, 0, 2], port));
        let begun = Instant::now();
        for number in 0..count {
            let due = Duration::from_secs_f64(f64::from(number) / f64::from(rate));
            while begun.elapsed() < due {
                std::thread::sleep(due.saturating_sub(begun.elapsed()));
            }
            // Packets beyond the queue are meant to be lost.
            let _ = socket.send_to(&vec![0; length], to);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| stream(BULK, 9_000, 0));
        scope.spawn(|| stream(VOICE, 5_004, 46));
    });
}
