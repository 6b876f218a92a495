//! Shares of an interface: bulk traffic that fills a link takes voice with it where nothing divides the link, and none of it where
//! `hornwork isolate` does. On a pair of virtual links between two networks made for the test; skipped without the rights.

use crate::common;

use common::{installed, scratch};
use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const PROGRAM: &str = env!("CARGO_BIN_EXE_hornwork");
/// The link, as `tc` writes rates.
const LINK: &str = "5mbit";
/// Voice: packets, octets of each, and packets a second (0.96 Mbit/s with headers).
const VOICE: (u32, usize, u32) = (1_500, 200, 500);
/// Bulk: for as long, at more than twice what the link carries.
const BULK: (u32, usize, u32) = (3_600, 1_400, 1_200);

/// Two networks, `va` here and `vb` there, with the words in `$1` carried out; says which processes are in them, and keeps them until
/// its input ends.
const SET_UP: &str = r#"
set -e
ip link add va type veth peer name vb
unshare -n sleep 60 &
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

/// Voice that was lost, per 100 sent, with a queueing discipline set up by these words. `None`: no rights for it here.
fn lost(set_up: &str) -> Option<f64> {
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
            hear()
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
    // The link was full: less came through than was sent, and yet a good deal.
    assert!(bulk > 500.0 && bulk < f64::from(BULK.0) * 0.9, "{bulk}");
    Some(100.0 - voice / f64::from(VOICE.0) * 100.0)
}

/// A command in a network of its own; `None` where there are no rights for one.
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
fn bulk_takes_voice_with_it_where_nothing_divides_the_link() {
    let Some(lost) = lost(&format!(
        "tc qdisc add dev va root handle 1: tbf rate {LINK} burst 16kb limit 60kb && tc qdisc add dev va parent 1:1 pfifo limit 40"
    )) else {
        return;
    };
    assert!(lost > 8.0, "{lost} % lost");
}

#[test]
fn with_shares_no_voice_is_lost() {
    let words = format!("{PROGRAM} isolate va --rate {LINK} --do apply");
    if let Some(lost) = lost(&words) {
        assert!(lost <= 0.0, "{lost} % lost");
    }
}

/// Applied twice it stands once; taken away nothing is left; what others set up stays.
#[test]
fn what_is_applied_can_be_taken_away_and_nothing_else_is() {
    let Some(mut command) = namespace() else {
        return;
    };
    let script = format!(
        "set -e; ip link add va type veth peer name vb; {PROGRAM} isolate va --rate {LINK} --do apply; \
         {PROGRAM} isolate va --rate 10mbit --do apply; tc class show dev va; {PROGRAM} isolate va --do remove; \
         {PROGRAM} isolate va --do remove; echo left; tc qdisc show dev va; tc qdisc add dev va root handle 7: htb; \
         ! {PROGRAM} isolate va --rate {LINK} --do apply; ! {PROGRAM} isolate va --do remove; tc qdisc show dev va"
    );
    let said = command.args(["sh", "-c", &script]).output().unwrap();
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    let why = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.status.success(), "{text}\n{why}");
    let (applied, left) = text.split_once("left").unwrap();
    assert_eq!(applied.matches("class htb").count(), 4, "{text}");
    assert!(applied.contains("rate 10Mbit"), "{text}");
    assert!(!left.contains("4857:") && left.contains("htb 7:"), "{text}");
    assert!(
        why.contains("divided by somebody else already (qdisc htb 7:"),
        "{why}"
    );
}

#[test]
fn commands_are_shown_unless_told_otherwise() {
    let said = Command::new(PROGRAM)
        .args([
            "isolate", "lo", "--rate", "100mbit", "--voice", "60", "--others", "35",
        ])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&said.stdout);
    assert!(said.status.success());
    assert!(text.contains("tc class add dev lo parent 4857:1 classid 4857:10 htb rate 60000000bit ceil 100000000bit prio 0"));
    assert!(text.contains("nothing was changed"), "{text}");
}

/// The experiment: voice beside bulk, shown without shares and judged with them.
#[test]
fn the_laboratory_shows_voice_beside_bulk() {
    let folder = scratch("isolation");
    let lab = |words: &[&str]| {
        let said = Command::new(PROGRAM)
            .args(["lab", "run", "isolation"])
            .args(words)
            .args(["--json", "-", "--set", "streams.seconds=4"])
            .args(["--set", "streams.count=20", "--set", "link.mbit=5"])
            .current_dir(&folder)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&said.stdout).into_owned();
        let why = String::from_utf8_lossy(&said.stderr).into_owned();
        (said.status.code(), text, why)
    };
    let (code, _, why) = lab(&["--simulate"]);
    assert_eq!(code, Some(2), "{why}");
    assert!(why.contains("leave out --simulate"), "{why}");
    // Jitter is the machine's here: a thread may be kept from running.
    let words = ["--set", "thresholds.jitter_p99_ms="];
    if namespace().is_none() {
        let (code, _, why) = lab(&words);
        assert_eq!(code, Some(3), "{why}");
        assert!(why.contains("CAP_NET_ADMIN"), "{why}");
        return;
    }
    let (code, text, why) = lab(&words);
    assert_eq!(code, Some(0), "{text}\n{why}");
    let run: serde_json::Value = serde_json::from_str(&text).unwrap();
    let trials = run["trials"].as_array().unwrap();
    let lost = |at: usize| trials[at]["lost_percent"].as_f64().unwrap();
    assert!(lost(0) > 2.0 && lost(1) <= 0.0, "{} {}", lost(0), lost(1));
    let remarks = trials[1]["remarks"].to_string();
    assert!(remarks.contains("emulated at 5 Mbit/s"), "{remarks}");
}

#[test]
fn what_cannot_be_is_refused_with_its_reason() {
    let folder = scratch("isolate");
    let file = folder.join("same.toml");
    let points =
        "[[interface]]\nname = \"a\"\nlisten = \"udp:127.0.0.1:5060\"\n[media]\ndscp = 24\n";
    std::fs::write(&file, points).unwrap();
    let file = file.display().to_string();
    let cases: [(&[&str], i32, &str); 6] = [
        (&["nosuch0"], 3, "no network interface \"nosuch0\""),
        (&["../lo"], 3, "no network interface"),
        (&["lo"], 2, "add --rate"),
        (&["lo", "--rate", "fast"], 2, "is no rate"),
        (
            &["lo", "--rate", "1mbit", "--vlan-priorities", "5,3"],
            2,
            "is no VLAN's interface",
        ),
        (
            &["lo", "--rate", "1mbit", "-c", &file],
            2,
            "cannot be told apart",
        ),
    ];
    for (words, code, why) in cases {
        let said = Command::new(PROGRAM)
            .arg("isolate")
            .args(words)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&said.stderr).into_owned();
        assert_eq!(said.status.code(), Some(code), "{words:?}: {text}");
        assert!(text.contains(why), "{words:?}: {text}");
    }
}

/// Moves this thread, and those that it starts, into the network of a process.
fn enter(process: &str) {
    let network = std::fs::File::open(format!("/proc/{process}/ns/net")).unwrap();
    let kind = Some(rustix::thread::LinkNameSpaceType::Network);
    rustix::thread::move_into_link_name_space(network.as_fd(), kind).unwrap();
}

/// Packets of voice and of bulk that came.
fn hear() -> [u32; 2] {
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
    // Whoever hears needs a moment.
    std::thread::sleep(Duration::from_millis(500));
    let stream = |(count, length, rate): (u32, usize, u32), port: u16, point: u8| {
        let socket = UdpSocket::bind("10.9.0.1:0").unwrap();
        rustix::net::sockopt::set_ip_tos(&socket, point << 2).unwrap();
        // What a full queue holds back is lost, too: bulk that waited for room would not press.
        socket.set_nonblocking(true).unwrap();
        let to = SocketAddr::from(([10, 9, 0, 2], port));
        let begun = Instant::now();
        for number in 0..count {
            let due = Duration::from_secs_f64(f64::from(number) / f64::from(rate));
            while begun.elapsed() < due {
                std::thread::sleep(due.saturating_sub(begun.elapsed()));
            }
            // What the queue has no room for is what this is about.
            let _ = socket.send_to(&vec![0; length], to);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| stream(BULK, 9_000, 0));
        scope.spawn(|| stream(VOICE, 5_004, 46));
    });
}
