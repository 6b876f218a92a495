//! `hornwork phone` with the phones of others: baresip, linphone and SIPp, each calling and called.

use crate::common::phones::{baresip_with_codec, correlation, recording, until, voice};
use crate::common::{Process, border, example, free_port, installed, media_ports, scratch};
use crate::softphone::{MIN_CORRELATION, answering, assert_heard, json, phone, text};
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

fn uc_server(folder: &Path, interface: &str) -> (Process, u16) {
    let sip = free_port();
    let text = example("loopback-uc.toml", sip, sip + 1, media_ports(100), "").replace(
        "kind = \"access\"",
        &format!("kind = \"access\"\n{interface}"),
    );
    (border(folder, &text, sip), sip)
}

#[test]
fn baresip_is_called_through_the_border() {
    if !installed(&["baresip"]) {
        return;
    }
    for (name, baresip_codec, codec, encryption) in [
        ("pcma", "PCMA", "pcma", ""),
        ("opus", "opus/48000/2", "opus", ""),
        ("srtp", "PCMU", "pcmu", "srtp-mand"),
    ] {
        let folder = scratch(&format!("softphone-calls-baresip-{name}"));
        let (border, sip) = uc_server(&folder, "srtp = \"pass\"");
        let said = codec::speech::answer();
        let spoken = voice(&folder, "callee.wav", said);
        voice(&folder, "caller.wav", codec::speech::speech());
        let home = folder.join("baresip");
        let callee = baresip_with_codec(
            baresip_codec,
            &home,
            1001,
            sip,
            &spoken,
            encryption,
            &["-t", "40"],
        );
        assert!(
            until(&border, "stored aor=1001 ", Duration::from_secs(30)),
            "{}",
            callee.log()
        );
        // Long enough for RTCP reports of both sides.
        let seconds = if name == "pcma" { "12" } else { "6" };
        let srtp = if encryption.is_empty() { "off" } else { "sdes" };
        let output = phone(
            &folder,
            &[
                "call",
                &format!("sip:1001@127.0.0.1:{sip}"),
                "--user",
                &format!("sip:1000@127.0.0.1:{sip}"),
                "--password",
                "secret-1000",
                "--codec",
                codec,
                "--srtp",
                srtp,
                "--wav-in",
                "caller.wav",
                "--loop",
                "--wav-out",
                "heard.wav",
                "--json",
                "figures.json",
                "--seconds",
                seconds,
                "--dtmf",
                "159",
            ],
        );
        assert_eq!(
            output.status.code(),
            Some(0),
            "{}\n{}\n{}",
            text(&output),
            callee.log(),
            border.log()
        );
        assert_heard(
            &folder,
            "heard.wav",
            said,
            seconds.parse().expect("seconds"),
        );
        let heard = correlation(&recording(&home, "dec.wav"), codec::speech::speech());
        println!("{name}: baresip heard the phone with correlation {heard:.3}");
        assert!(heard > MIN_CORRELATION, "{name}: {heard}");
        let figures = json(&folder, "figures.json");
        assert_eq!(figures["lost"], 0, "{figures:#}");
        assert_eq!(figures["protection"] == "srtp-sdes", !encryption.is_empty());
        if name == "pcma" {
            let round_trip = figures["round_trip_ms"].as_f64();
            assert!(round_trip.is_some_and(|ms| ms < 100.0), "{figures:#}");
            assert_eq!(figures["peer"]["lost"], 0, "{figures:#}");
        }
    }
}

#[test]
fn baresip_calls_the_phone_through_the_border() {
    if !installed(&["baresip"]) {
        return;
    }
    let folder = scratch("softphone-called-by-baresip");
    let (border, sip) = uc_server(&folder, "");
    let spoken = voice(&folder, "caller.wav", codec::speech::speech());
    voice(&folder, "callee.wav", codec::speech::answer());
    let mut callee = answering(
        &folder,
        &[
            "--register",
            &format!("sip:1001@127.0.0.1:{sip}"),
            "--password",
            "secret-1001",
            "--wav-in",
            "callee.wav",
            "--loop",
            "--wav-out",
            "heard.wav",
            "--json",
            "figures.json",
            "--wait",
            "30",
            "--seconds",
            "5",
            "--dtmf",
            "7#",
        ],
    );
    let home = folder.join("baresip");
    let dial = format!("/dial sip:1001@127.0.0.1:{sip}");
    let caller = baresip_with_codec(
        "PCMA",
        &home,
        1000,
        sip,
        &spoken,
        "",
        &["-e", &dial, "-t", "20"],
    );
    assert_eq!(
        callee.wait(Duration::from_secs(30)),
        Some(true),
        "{}\n{}\n{}",
        callee.log(),
        caller.log(),
        border.log()
    );
    assert_heard(&folder, "heard.wav", codec::speech::speech(), 5.0);
    let heard = correlation(&recording(&home, "dec.wav"), codec::speech::answer());
    assert!(heard > MIN_CORRELATION, "baresip heard {heard}");
    assert!(
        caller.log().contains("event: '7'")
            || caller.log().contains("DTMF")
            || caller.log().contains("received event"),
        "{}",
        caller.log()
    );
}

/// baresip follows the REFER that the border passes on, and calls the third phone.
#[test]
fn baresip_is_transferred() {
    if !installed(&["baresip"]) {
        return;
    }
    let folder = scratch("softphone-transfers-baresip");
    let (border, sip) = uc_server(&folder, "");
    let uri = |user: u16| format!("sip:{user}@127.0.0.1:{sip}");
    let spoken = voice(&folder, "baresip.wav", codec::speech::speech());
    let home = folder.join("baresip");
    let transferee = baresip_with_codec("PCMA", &home, 1001, sip, &spoken, "", &["-t", "40"]);
    assert!(
        until(&border, "stored aor=1001 ", Duration::from_secs(30)),
        "{}",
        transferee.log()
    );
    let target = answering(
        &folder,
        &[
            "--register",
            &uri(1002),
            "--password",
            "secret-1002",
            "--wait",
            "30",
            "--seconds",
            "2",
        ],
    );
    let output = phone(
        &folder,
        &[
            "call",
            &uri(1001),
            "--user",
            &uri(1000),
            "--password",
            "secret-1000",
            "--codec",
            "pcma",
            "--seconds",
            "15",
            "--transfer-at",
            "1.5",
            &uri(1002),
        ],
    );
    let shown = text(&output);
    let logs = format!("{}\n{}\n{}", transferee.log(), target.log(), border.log());
    assert_eq!(output.status.code(), Some(0), "{shown}\n{logs}");
    assert!(shown.contains("transfer: accepted"), "{shown}\n{logs}");
    assert!(
        until(&target, "established", Duration::from_secs(30)),
        "{shown}\n{logs}"
    );
    assert!(shown.contains("transferred"), "{shown}\n{logs}");
}

/// A linphone console without a registration, at this port; files in place of a sound card.
fn linphone(folder: &Path, sip: u16, more: &[&str]) -> Process {
    let home = folder.join("home");
    for path in [".local/share/linphone", ".config/linphone"] {
        std::fs::create_dir_all(home.join(path)).expect("home");
    }
    let settings = folder.join("linphonerc");
    let text = format!(
        "[sip]\nsip_port={sip}\nsip_tcp_port=0\nsip_tls_port=0\ncontact=\"linphone\" <sip:linphone@127.0.0.1>\n\
         guess_hostname=0\nregister_only_when_network_is_up=0\nuse_ipv6=0\nmedia_encryption=none\n[net]\n\
         firewall_policy=0\n[rtp]\naudio_rtp_port={}\n",
        free_port() + 1000,
    );
    std::fs::write(&settings, text).expect("settings");
    Process::start(
        Command::new("linphonec")
            .env("HOME", &home)
            .arg("-c")
            .arg(&settings)
            .args(more)
            .stdin(Stdio::piped()),
        &folder.join("linphone.log"),
    )
}

#[test]
fn linphone_is_called_and_calls() {
    if !installed(&["linphonec"]) {
        return;
    }
    let folder = scratch("softphone-linphone");
    let said = codec::speech::answer();
    let spoken = voice(&folder, "linphone.wav", said);
    voice(&folder, "phone.wav", codec::speech::speech());
    let port = free_port();
    let mut console = linphone(&folder, port, &["-a"]);
    let mut keyboard = console.stdin();
    let heard = folder.join("linphone-heard.wav");
    let lines = format!(
        "soundcard use files\nplay {}\nrecord {}\n",
        spoken.display(),
        heard.display()
    );
    keyboard
        .write_all(lines.as_bytes())
        .and_then(|()| keyboard.flush())
        .expect("linphone");
    // It listens on IPv6 with IPv4 addresses mapped, a moment after its console has started.
    assert!(
        until(&console, "record", Duration::from_secs(30)),
        "{}",
        console.log()
    );
    let console = console.at_port(port);
    std::thread::sleep(Duration::from_millis(500));
    let output = phone(
        &folder,
        &[
            "call",
            &format!("sip:linphone@127.0.0.1:{port}"),
            "--codec",
            "pcmu,pcma",
            "--wav-in",
            "phone.wav",
            "--loop",
            "--wav-out",
            "heard.wav",
            "--json",
            "figures.json",
            "--seconds",
            "6",
            "--ring-seconds",
            "20",
        ],
    );
    assert_eq!(
        output.status.code(),
        Some(0),
        "{}\n{}",
        text(&output),
        console.log()
    );
    let figures = json(&folder, "figures.json");
    assert!(
        figures["received"].as_u64() > Some(100),
        "{figures:#}\n{}",
        console.log()
    );
    assert_heard(&folder, "heard.wav", said, 6.0);
    // The other way.
    let local = format!("127.0.0.1:{}", free_port());
    let mut callee = answering(
        &folder,
        &[
            "--local",
            &local,
            "--wait",
            "20",
            "--seconds",
            "4",
            "--json",
            "called.json",
        ],
    );
    writeln!(keyboard, "call sip:phone@{local}")
        .and_then(|()| keyboard.flush())
        .expect("linphone");
    assert_eq!(
        callee.wait(Duration::from_secs(30)),
        Some(true),
        "{}\n{}",
        callee.log(),
        console.log()
    );
    let figures = json(&folder, "called.json");
    assert!(
        figures["established"] == true && figures["received"].as_u64() > Some(100),
        "{figures:#}"
    );
}

#[test]
fn sipp_calls_and_is_called() {
    if !installed(&["sipp"]) {
        return;
    }
    let folder = scratch("softphone-sipp");
    let sipp = |arguments: &[&str], log: &str| {
        Process::start(
            Command::new("sipp")
                .current_dir(&folder)
                .args(["-i", "127.0.0.1", "-nostdin", "-m", "1"])
                .args(arguments)
                .stdin(Stdio::null()),
            &folder.join(log),
        )
    };
    let port = free_port();
    let mut uas = sipp(&["-sn", "uas", "-p", &port.to_string()], "uas.log").at_port(port);
    let output = phone(
        &folder,
        &[
            "call",
            &format!("sip:service@127.0.0.1:{port}"),
            "--codec",
            "pcmu",
            "--seconds",
            "1",
            "--json",
            "uas.json",
        ],
    );
    assert_eq!(
        output.status.code(),
        Some(0),
        "{}\n{}",
        text(&output),
        uas.log()
    );
    assert_eq!(
        uas.wait(Duration::from_secs(30)),
        Some(true),
        "{}",
        uas.log()
    );
    // SIPp's scenario sends no media: there is no MOS, and a bound fails.
    assert!(json(&folder, "uas.json")["mos"].is_null());
    let local = format!("127.0.0.1:{}", free_port());
    let mut callee = answering(&folder, &["--local", &local, "--wait", "20"]);
    let uac = free_port().to_string();
    let mut uac = sipp(&["-sn", "uac", "-d", "1000", "-p", &uac, &local], "uac.log");
    assert_eq!(
        uac.wait(Duration::from_secs(30)),
        Some(true),
        "{}\n{}",
        uac.log(),
        callee.log()
    );
    assert_eq!(
        callee.wait(Duration::from_secs(30)),
        Some(true),
        "{}",
        callee.log()
    );
    assert!(
        callee.log().contains("ended by the peer"),
        "{}",
        callee.log()
    );
}

/// The jitter that the phone reports is that of tshark for the same packets.
#[test]
fn tshark_computes_the_same_jitter() {
    if !installed(&["tshark"]) {
        return;
    }
    let folder = scratch("softphone-tshark");
    let port = free_port();
    let local = format!("127.0.0.1:{port}");
    let capture = folder.join("call.pcap");
    let mut tshark = Process::start(
        Command::new("tshark")
            .args(["-q", "-i", "lo", "-f", "udp", "-B", "16", "-w"])
            .arg(&capture)
            .stdin(Stdio::null()),
        &folder.join("tshark.log"),
    );
    if !until(&tshark, "Capturing on", Duration::from_secs(30)) {
        eprintln!("skipped: tshark cannot capture: {}", tshark.log());
        return;
    }
    // The message precedes the capture.
    std::thread::sleep(Duration::from_secs(1));
    let mut callee = answering(
        &folder,
        &["--local", &local, "--wait", "20", "--json", "callee.json"],
    );
    let uri = format!("sip:600@{local}");
    let output = phone(
        &folder,
        &["call", &uri, "--codec", "pcma", "--seconds", "4"],
    );
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    assert_eq!(callee.wait(Duration::from_secs(30)), Some(true));
    // The last packets are in its buffer.
    std::thread::sleep(Duration::from_secs(1));
    tshark.signal("TERM");
    assert!(tshark.wait(Duration::from_secs(30)).is_some());
    let figures = json(&folder, "callee.json");
    let streams = Command::new("tshark")
        .args(["-q", "-z", "rtp,streams", "-r"])
        .arg(&capture)
        .output()
        .expect("tshark");
    let streams = String::from_utf8_lossy(&streams.stdout).into_owned();
    let ours = |pointer: &str| figures.pointer(pointer).and_then(serde_json::Value::as_f64);
    let (mean, max, delta) = (
        ours("/jitter_ms/mean").expect("jitter"),
        ours("/jitter_ms/max").expect("jitter"),
        ours("/delta_ms/max").expect("delta"),
    );
    // Other tests may be in the capture: one of its streams has our figures. The kernel times a packet at the
    // socket a little after it times it for the capture.
    let near = |theirs: f64, ours: f64| (theirs - ours).abs() < 0.3;
    let same = streams.lines().any(|line| {
        let words: Vec<f64> = line
            .split_whitespace()
            .rev()
            .take(6)
            .filter_map(|word| word.parse().ok())
            .collect();
        // From the right: jitter max, mean, min; delta max, mean, min.
        matches!(words.as_slice(), [their_max, their_mean, _, their_delta, ..]
            if near(*their_max, max) && near(*their_mean, mean) && near(*their_delta, delta))
    });
    assert!(same, "{figures:#}\n{streams}");
}

/// The experiment of study row B6, shortened: each telephone is measured by the same receiver.
#[test]
fn phone_jitter_measures_every_telephone() {
    if !installed(&["baresip", "linphonec"]) {
        return;
    }
    let folder = scratch("softphone-experiment");
    let lab = |more: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_hornwork"))
            .args(["lab", "run", "phone-jitter", "--repeat", "1"])
            .args(["--set", "levels.values=[2, 3, 4]"])
            .args(["--set", "phone.duration_seconds=2"])
            .args(["--set", "phone.load_streams=4"])
            .args(more)
            .current_dir(&folder)
            .stdin(Stdio::null())
            .output()
            .expect("hornwork")
    };
    let output = lab(&["--json", "figures.json", "--out", "results"]);
    // The thresholds are those of level 1, which needs rights: none is measured.
    assert!(
        matches!(output.status.code(), Some(0 | 4)),
        "{}",
        text(&output)
    );
    let figures = json(&folder, "figures.json");
    let trials = figures["trials"].as_array().expect("trials");
    assert_eq!(trials.len(), 3, "{figures:#}");
    for trial in trials {
        let jitter = &trial["jitter_ms"];
        assert!(jitter["mean"].as_f64() > Some(0.0), "{trial:#}");
        assert!(jitter["delta_max"].as_f64() > Some(20.0), "{trial:#}");
    }
}

/// The softphone is stopped for half of each second while its stream is measured.
#[test]
fn phone_that_is_stopped_fails_the_experiment() {
    let folder = scratch("softphone-stopped");
    for stopped in [false, true] {
        let mut lab = Process::start(
            Command::new(env!("CARGO_BIN_EXE_hornwork"))
                .args(["lab", "run", "phone-jitter", "--repeat", "1"])
                .args(["--set", "levels.values=[4]"])
                .args(["--set", "phone.duration_seconds=4"])
                .args(["--set", "phone.load_streams=4"])
                .args(["--set"])
                .arg("thresholds.figure=[{ name = \"jitter_mean_ms\", at = 4, most = 4.0 }]")
                .current_dir(&folder)
                .stdin(Stdio::null()),
            &folder.join(format!("lab-{stopped}.log")),
        );
        if stopped {
            let phone = phone_of(lab.id());
            // Warm-up of 2 s, then the measurement.
            std::thread::sleep(Duration::from_millis(2_500));
            for _ in 0..6 {
                signal(&phone, "STOP");
                std::thread::sleep(Duration::from_millis(500));
                signal(&phone, "CONT");
                std::thread::sleep(Duration::from_millis(500));
            }
        }
        let passed = lab.wait(Duration::from_secs(60));
        assert_eq!(passed, Some(!stopped), "{}", lab.log());
        let verdict = if stopped { "failed" } else { "passed" };
        assert!(
            lab.log()
                .contains(&format!("{verdict}: jitter_mean_ms at 4")),
            "{}",
            lab.log()
        );
    }
}

/// The softphone that the test lab with this process number has started.
fn phone_of(lab: u32) -> String {
    let end = std::time::Instant::now() + Duration::from_secs(20);
    loop {
        let found = Command::new("pgrep")
            .args(["-P", &lab.to_string(), "-f", "phone call"])
            .output()
            .expect("pgrep");
        let text = String::from_utf8_lossy(&found.stdout).trim().to_owned();
        if !text.is_empty() && !text.contains('\n') {
            return text;
        }
        assert!(std::time::Instant::now() < end, "no softphone was started");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn signal(process: &str, name: &str) {
    let sent = Command::new("kill")
        .args([&format!("-{name}"), process])
        .status()
        .expect("kill");
    assert!(sent.success(), "{name} {process}");
}
