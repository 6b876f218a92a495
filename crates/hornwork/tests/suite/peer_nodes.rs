//! The border commands media nodes: rtpengine and our own. SIPp's calls pass the border, their speech the nodes.

use crate::common;

use common::{Process, border, free_port, installed, media_ports, root, scratch, serves};
use serde_json::Value;
use std::net::UdpSocket;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Longest wait on a machine that is busy with other tests.
const PATIENCE: Duration = Duration::from_secs(20);
/// Speech that the caller plays, from SIPp's package.
const SPEECH: &str = "/usr/share/sip-tester/g711a.pcap";

/// Whether SIPp can play speech here, which needs raw sockets.
fn can_play_speech() -> bool {
    if !installed(&["sipp", "id"]) {
        return false;
    }
    let id = Command::new("id").arg("-u").output().expect("id");
    let root = id.stdout.starts_with(b"0\n");
    if !Path::new(SPEECH).exists() {
        eprintln!("skipped: not installed: {SPEECH} (Debian: sip-tester)");
        return false;
    }
    if !root {
        eprintln!("skipped: SIPp plays no speech without root");
        return false;
    }
    true
}

/// Waits until a `ping` to this port is answered.
fn pong(process: &Process, port: u16) {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("socket");
    socket
        .set_read_timeout(Some(Duration::from_millis(200)))
        .expect("timeout");
    let end = Instant::now() + PATIENCE;
    let mut bytes = [0; 2_048];
    loop {
        let _ = socket.send_to(b"probe d7:command4:pinge", ("127.0.0.1", port));
        if let Ok(length) = socket.recv(&mut bytes)
            && bytes[..length].ends_with(b"d6:result4:ponge")
        {
            return;
        }
        assert!(Instant::now() < end, "no node: {}", process.log());
    }
}

/// Starts one of our nodes; returns its command port too.
fn own_node(folder: &Path) -> (Process, u16) {
    let port = free_port();
    let (first, last) = media_ports(40);
    let file = folder.join("node.toml");
    let text = format!(
        "[ng_server]\nlisten='udp:127.0.0.1:{port}'\n[[ng_server.interface]]\nname='default'\n\
         media={{address='127.0.0.1',ports='{first}-{last}'}}\n[media]\nsockets='per-port'\n"
    );
    std::fs::write(&file, text).expect("configuration");
    let process = Process::start(
        Command::new(env!("CARGO_BIN_EXE_hornwork"))
            .args(["run", "--role", "media", "-c"])
            .arg(&file)
            .stdin(Stdio::null()),
        &folder.join("node.log"),
    );
    pong(&process, port);
    (process, port)
}

/// Starts rtpengine in user space; returns its command port too; `None` if it is not installed.
fn rtpengine(folder: &Path) -> Option<(Process, u16)> {
    let program = ["/usr/bin/rtpengine", "/usr/sbin/rtpengine"]
        .into_iter()
        .find(|program| Path::new(program).is_file());
    let Some(program) = program else {
        eprintln!("skipped: not installed: rtpengine");
        return None;
    };
    let port = free_port();
    let (first, last) = media_ports(40);
    let process = Process::start(
        Command::new(program)
            .args([
                // Not the distribution's file, which configures its own ports.
                "--config-file=none",
                "--table=-1",
                "--foreground",
                "--log-stderr",
                "--num-threads=1",
                "--interface=127.0.0.1",
            ])
            .arg(format!("--listen-ng=127.0.0.1:{port}"))
            .arg(format!("--listen-cli=127.0.0.1:{}", free_port()))
            .arg(format!("--port-min={first}"))
            .arg(format!("--port-max={last}"))
            .arg(format!(
                "--pidfile={}",
                folder.join("rtpengine.pid").display()
            ))
            .stdin(Stdio::null()),
        &folder.join("rtpengine.log"),
    );
    pong(&process, port);
    Some((process, port))
}

/// A border with these nodes, and the called side, with their ports.
struct BorderWithNodes {
    border: Process,
    _called: Process,
    sip: u16,
    folder: std::path::PathBuf,
}

fn start_border(folder: &Path, nodes: &[(&str, u16)]) -> BorderWithNodes {
    start_border_with(folder, nodes, &["-sn", "uas"], "")
}

/// Path of one of our scenarios.
fn scenario(name: &str) -> String {
    let file = root().join("crates/hornwork/tests/sipp").join(name);
    let file = file.canonicalize().expect("scenario");
    file.to_str().expect("path").to_owned()
}

fn start_border_with(
    folder: &Path,
    nodes: &[(&str, u16)],
    callee: &[&str],
    media: &str,
) -> BorderWithNodes {
    let (sip, core, called) = (free_port(), free_port(), free_port());
    let mut text = format!(
        "[[interface]]\nname='access'\nkind='access'\nlisten='udp:127.0.0.1:{sip}'\nmedia={{address='127.0.0.1',ports='18000-18003'}}\n\
         [[interface]]\nname='core'\nkind='core'\nlisten='udp:127.0.0.1:{core}'\nmedia={{address='127.0.0.1',ports='18000-18003'}}\n\
         [[trunk]]\nname='server'\ninterface='core'\ntarget='udp:127.0.0.1:{called}'\n\
         [[route]]\ntrunk='server'\n[media]\nanchor='nodes'\nnode_failure_wait_s=2\n{media}"
    );
    for (name, port) in nodes {
        text.push_str(&format!(
            "[[media_node]]\nname='{name}'\ncontrol='udp:127.0.0.1:{port}'\n"
        ));
    }
    let called_process = Process::start(
        Command::new("sipp")
            .args(callee)
            .args(["-i", "127.0.0.1", "-mi", "127.0.0.1"])
            .args(["-p", &called.to_string(), "-mp", &free_port().to_string()])
            .args(["-rtp_echo", "-nostdin"])
            .stdin(Stdio::null()),
        &folder.join("uas.log"),
    );
    let called_process = called_process.at_port(called);
    let border = border(folder, &text, sip);
    assert!(serves(sip));
    BorderWithNodes {
        border,
        _called: called_process,
        sip,
        folder: folder.to_owned(),
    }
}

impl BorderWithNodes {
    fn caller(&self, calls: u32, file: &str, name: &str) -> Process {
        Process::start(
            Command::new("sipp")
                .args(["-sf", &scenario(file)])
                .args(["-i", "127.0.0.1", "-mi", "127.0.0.1"])
                .args(["-p", &free_port().to_string()])
                .args(["-mp", &free_port().to_string()])
                .args(["-m", &calls.to_string(), "-r", "1", "-nostdin"])
                .args(["-timeout", "60s"])
                .arg(format!("127.0.0.1:{}", self.sip))
                .stdin(Stdio::null()),
            &self.folder.join(name),
        )
    }

    /// Runs calls one after the other, each with speech; they must succeed.
    fn calls(&self, calls: u32, name: &str) {
        let mut caller = self.caller(calls, "uac-speech.xml", name);
        let ended = caller.wait(Duration::from_secs(90));
        assert_eq!(ended, Some(true), "{}\n{}", caller.log(), self.border.log());
    }

    /// Waits until a word occurs this often in the border's log.
    fn until(&self, word: &str, times: usize) -> String {
        let end = Instant::now() + PATIENCE;
        loop {
            let messages = self.border.log();
            if messages.matches(word).count() >= times {
                return messages;
            }
            assert!(Instant::now() < end, "{word} {times} times: {messages}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Values of a field in all events of this name.
fn values(log: &str, event: &str, field: &str) -> Vec<u64> {
    log.lines()
        .filter(|line| line.contains(event))
        .filter_map(|line| {
            let value = line.split(&format!(" {field}=")).nth(1)?;
            value.split_whitespace().next()?.parse().ok()
        })
        .collect()
}

/// Nearly 5 s of 20 ms packets in each direction, less the loss on a busy machine.
fn assert_speech(log: &str, calls: usize) {
    for side in ["caller", "callee"] {
        let came = values(log, "media_node_statistics", &format!("{side}_packets"));
        assert_eq!(came.len(), calls, "{log}");
        assert!(
            came.iter().all(|came| *came > 100),
            "{side}: {came:?}\n{log}"
        );
    }
}

#[test]
fn speech_passes_rtpengine() {
    let folder = scratch("nodes-rtpengine");
    if !can_play_speech() {
        return;
    }
    let Some((_rtpengine, port)) = rtpengine(&folder) else {
        return;
    };
    let scene = start_border(&folder, &[("rtpengine", port)]);
    scene.calls(2, "uac.log");
    let log = scene.until("call_ended", 2);
    assert_speech(&log, 2);
    assert!(!log.contains("media_node_failed"), "{log}");
    assert_eq!(log.matches(" path=node").count(), 2, "{log}");
}

/// Packets of a side in the intervals of a stored call, and those that have a value of `name`.
fn of_intervals(events: &[Value], side: &str, name: &str) -> (u64, usize) {
    let text = |event: &Value, field: &str| {
        let value = event["fields"][format!("{side}_{field}")].as_str();
        value.map(str::to_owned)
    };
    let packets = events.iter().filter_map(|event| text(event, "packets"));
    let packets = packets.map(|packets| packets.parse::<u64>().expect("a number"));
    let known = events.iter().filter(|event| text(event, name).is_some());
    (packets.sum(), known.count())
}

/// Our softphones send speech and RTCP for 16 s through rtpengine: the store has its figures of each interval.
#[test]
fn intervals_of_quality_come_from_rtpengine() {
    let folder = scratch("nodes-intervals");
    let Some((_rtpengine, node)) = rtpengine(&folder) else {
        return;
    };
    let (sip, core, called) = (free_port(), free_port(), free_port());
    let store = folder.join("store");
    let text = format!(
        "[[interface]]\nname='access'\nkind='access'\nlisten='udp:127.0.0.1:{sip}'\nmedia={{address='127.0.0.1',ports='18000-18003'}}\n\
         [[interface]]\nname='core'\nkind='core'\nlisten='udp:127.0.0.1:{core}'\nmedia={{address='127.0.0.1',ports='18000-18003'}}\n\
         [[trunk]]\nname='server'\ninterface='core'\ntarget='udp:127.0.0.1:{called}'\n\
         [[route]]\ntrunk='server'\n[media]\nanchor='nodes'\n\
         [[media_node]]\nname='rtpengine'\ncontrol='udp:127.0.0.1:{node}'\n\
         [store]\nfolder='{}'\nquality_interval_s=5\n",
        store.display()
    );
    let border = border(&folder, &text, sip);
    let phone = |words: &[&str], log: &str| {
        Process::start(
            Command::new(env!("CARGO_BIN_EXE_hornwork"))
                .arg("phone")
                .args(words)
                .current_dir(&folder)
                .stdin(Stdio::null()),
            &folder.join(log),
        )
    };
    let local = format!("127.0.0.1:{called}");
    let answer = [
        "answer",
        "--local",
        &local,
        "--wait",
        "60",
        "--seconds",
        "30",
    ];
    let _answering = phone(&answer, "answer.log").at_port(called);
    let uri = format!("sip:600@127.0.0.1:{sip}");
    let mut calling = phone(&["call", &uri, "--seconds", "16"], "call.log");
    let ended = calling.wait(Duration::from_secs(60));
    assert_eq!(ended, Some(true), "{}\n{}", calling.log(), border.log());
    let end = Instant::now() + PATIENCE;
    let call = loop {
        let trace = |more: &[&str]| -> Value {
            let output = Command::new(env!("CARGO_BIN_EXE_hornwork"))
                .args(["trace", "--json", "--store"])
                .arg(&store)
                .args(more)
                .output()
                .expect("hornwork");
            serde_json::from_slice(&output.stdout).unwrap_or_default()
        };
        let id = trace(&["--number", "600"])[0]["call_id"].clone();
        let call = trace(&[id.as_str().unwrap_or("none")]);
        // The figures of the whole call come with the node's answer to `delete`, which may be stored after the end.
        let events = call["events"].as_array();
        let mut events = events.into_iter().flatten();
        if call["state"] == "ended" && events.any(|event| event["event"] == "call_media") {
            break call;
        }
        assert!(Instant::now() < end, "{call:#}\n{}", border.log());
        std::thread::sleep(Duration::from_millis(100));
    };
    let all = call["events"].as_array().expect("events");
    let intervals = all
        .iter()
        .filter(|event| event["event"] == "call_media_interval");
    let intervals: Vec<Value> = intervals.cloned().collect();
    // The first one takes 2.5 to 7.5 s, the others 5 s.
    assert!((2..=4).contains(&intervals.len()), "{call:#}");
    let media = all.iter().find(|event| event["event"] == "call_media");
    let media = &media.unwrap_or_else(|| panic!("{call:#}"))["fields"];
    for side in ["caller", "callee"] {
        let (packets, with_mos) = of_intervals(&intervals, side, "mos");
        let (_, with_jitter) = of_intervals(&intervals, side, "jitter_ms");
        let total = media[format!("{side}_packets")].as_str().expect("packets");
        let total: u64 = total.parse().expect("a number");
        // 50 in a second, fewer on a busy machine; the rest after the last interval is in the total.
        assert!(
            (200..=total).contains(&packets),
            "{side}: {packets} of {total}\n{call:#}"
        );
        assert!(with_mos > 0 && with_jitter > 0, "{side}: {call:#}");
        // rtpengine reports whole milliseconds; decimals would claim a precision.
        for event in &intervals {
            let jitter = event["fields"][format!("{side}_jitter_ms")].as_str();
            let is_whole = |text: &str| text.parse::<u64>().is_ok();
            assert!(jitter.is_none_or(is_whole), "{event:#}");
        }
    }
}

#[test]
fn speech_passes_our_node() {
    let folder = scratch("nodes-own");
    if !can_play_speech() {
        return;
    }
    let (_node, port) = own_node(&folder);
    let scene = start_border(&folder, &[("own", port)]);
    scene.calls(2, "uac.log");
    let log = scene.until("call_ended", 2);
    assert_speech(&log, 2);
    assert!(!log.contains("media_node_failed"), "{log}");
    assert_eq!(log.matches(" path=node").count(), 2, "{log}");
}

/// Of two nodes the first is killed during a call: its speech arrives again over the other within 3 s, in both
/// directions.
fn killed(folder: &Path, victim: (&str, Process, u16), other: (&str, u16)) {
    let (name, process, port) = victim;
    let uas = scenario("uas-moved.xml");
    let scene = start_border_with(folder, &[(name, port), other], &["-sf", &uas], "");
    let mut caller = scene.caller(1, "uac-speech-moved.xml", "uac.log");
    scene.until("call_answered", 1);
    std::thread::sleep(Duration::from_millis(500));
    process.signal("KILL");
    let killed = Instant::now();
    let log = scene.until("call_reanchored", 1);
    let took = killed.elapsed();
    assert!(took < Duration::from_secs(3), "{took:?}: {log}");
    assert!(
        log.contains(&format!("from_node={name} to_node={}", other.0)),
        "{log}"
    );
    let ended = caller.wait(Duration::from_secs(60));
    assert_eq!(
        ended,
        Some(true),
        "{}\n{}",
        caller.log(),
        scene.border.log()
    );
    let log = scene.until("media_node_statistics", 1);
    assert_speech(&log, 1);
    assert!(!log.contains("call_not_reanchored"), "{log}");
}

#[test]
fn call_of_killed_own_node_continues_at_rtpengine() {
    let folder = scratch("nodes-killed-own");
    if !can_play_speech() {
        return;
    }
    let (own, first) = own_node(&folder);
    let Some((_rtpengine, second)) = rtpengine(&folder) else {
        return;
    };
    killed(&folder, ("own", own, first), ("rtpengine", second));
}

#[test]
fn call_of_killed_rtpengine_continues_at_own_node() {
    let folder = scratch("nodes-killed-rtpengine");
    if !can_play_speech() {
        return;
    }
    let Some((rtpengine, first)) = rtpengine(&folder) else {
        return;
    };
    let (_own, second) = own_node(&folder);
    killed(&folder, ("rtpengine", rtpengine, first), ("own", second));
}

/// If calls end with their node, both sides get BYE at once, and the next call uses another node.
#[test]
fn call_of_killed_node_ends() {
    let folder = scratch("nodes-killed-end");
    if !can_play_speech() {
        return;
    }
    let (own, first) = own_node(&folder);
    let (_other, second) = own_node(&scratch("nodes-killed-end-other"));
    let nodes = [("own", first), ("other", second)];
    let scene = start_border_with(&folder, &nodes, &["-sn", "uas"], "node_failure='end'\n");
    let mut lost = scene.caller(1, "uac-speech.xml", "uac-lost.log");
    scene.until("call_answered", 1);
    own.signal("KILL");
    let log = scene.until("call_not_reanchored", 1);
    assert!(log.contains("node=own"), "{log}");
    scene.calls(1, "uac.log");
    let log = scene.until("media_node_statistics", 1);
    assert_speech(&log, 1);
    // The caller's scenario does not expect the BYE of the lost call.
    assert_eq!(
        lost.wait(Duration::from_secs(60)),
        Some(false),
        "{}",
        lost.log()
    );
}
