//! The experiments of ESP by the program itself, each in a short form: list, exit code, and the figures in run.json.

use crate::common;
use common::scratch;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

fn hornwork(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hornwork"))
        .args(arguments)
        .output()
        .expect("the program")
}

/// Runs an experiment; returns the exit code and `run.json`.
fn run(folder: &Path, name: &str, sets: &[&str], simulate: bool) -> (Option<i32>, Value) {
    let out = folder.join(name);
    let path = out.display().to_string();
    let mut arguments = vec!["lab", "run", name, "--out", &path, "--force"];
    for set in sets {
        arguments.extend(["--set", set]);
    }
    if simulate {
        arguments.push("--simulate");
    }
    let output = hornwork(&arguments);
    let text = std::fs::read(out.join("run.json")).unwrap_or_else(|error| {
        let why = String::from_utf8_lossy(&output.stderr).into_owned();
        panic!("{name}: {error}: {why}")
    });
    (
        output.status.code(),
        serde_json::from_slice(&text).expect("JSON"),
    )
}

fn figure(run: &Value, name: &str) -> Option<f64> {
    let measures = run["trials"][0]["details"]["measures"].as_array()?;
    let found = measures.iter().find(|case| case["figure"] == name)?;
    found["value"].as_f64()
}

const NO_WRONG: &str = "thresholds.figure=[{ name = \"esp.wrong_packets\", most = 0 }]";
const NO_REFUSED: &str = "thresholds.figure=[{ name = \"esp.refused_packets\", most = 0 }]";

#[test]
fn every_esp_experiment_runs_and_leaves_its_figures() {
    let folder = scratch("esp-experiments");
    let list = String::from_utf8(hornwork(&["lab", "list"]).stdout).expect("UTF-8");
    let short = ["levels.values=[20]", "esp.rounds=12", "esp.packets=16"];
    let quiet = [short[0], short[1], short[2], NO_WRONG];
    let cost = [
        short[0],
        short[1],
        short[2],
        NO_WRONG,
        "esp.openssl_seconds=0",
    ];
    let calls = [
        "levels.values=[13]",
        "repeat=1",
        "callers.total=4",
        "callers.hold_seconds=2.0",
        "thresholds.mos=",
        "thresholds.lost_percent=5.0",
        NO_REFUSED,
    ];
    let conferences = [
        "levels.values=[1]",
        "conference.duration_seconds=1.0",
        "conference.warm_up_seconds=1.0",
        "thresholds.lost_percent=5.0",
        NO_REFUSED,
    ];
    let cases: [(&str, &[&str], &str); 6] = [
        ("esp-packet-cost", &cost, "esp.in_us.aes-cbc-sha1.tunnel"),
        (
            "esp-bandwidth",
            &short,
            "esp.measured_kbit.aes-cbc-sha1.tunnel-udp",
        ),
        (
            "esp-without-udp",
            &quiet,
            "esp.gain_percent.aes-cbc-sha1.transport",
        ),
        (
            "esp-direct",
            &quiet,
            "esp.gain_percent.aes-cbc-sha1.transport",
        ),
        ("cost-of-protection", &calls, "esp.call_kbit"),
        ("call-capacity-ipsec", &conferences, "esp.call_kbit"),
    ];
    for (name, sets, wanted) in cases {
        assert!(list.contains(name), "{name}: {list}");
        for simulate in [true, false] {
            let (code, run) = run(&folder, name, sets, simulate);
            assert_eq!(code, Some(0), "{name}, simulate {simulate}: {run:#}");
            assert!(figure(&run, wanted).is_some(), "{name}: {run:#}");
            assert_eq!(run["verdict"], "passed", "{name}");
            let remarks = run["trials"][0]["remarks"].to_string();
            let said = ["in memory", "virtual time"];
            let remarked = said.iter().any(|words| remarks.contains(words));
            assert!(remarked || !simulate, "{name}: {remarks}");
        }
    }
    let (_, bandwidth) = run(&folder, "esp-bandwidth", &short, true);
    let kbit = figure(&bandwidth, "esp.measured_kbit.aes-cbc-sha1.tunnel");
    assert_eq!(kbit, Some(105.6));
}

/// No figure of a simulation is taken from a clock of this machine, except the processing times that docs/studies.md
/// names.
#[test]
fn simulations_with_esp_give_the_same_bytes_for_the_same_seed() {
    let rooms = [
        "levels.values=[1]",
        "conference.duration_seconds=1.0",
        "conference.warm_up_seconds=1.0",
        "seed=7",
    ];
    let serial = [
        "network.profile=serial-64",
        "protection.kind=esp-aes-gcm-tunnel",
        "callers.codec=G729",
        "callers.total=1",
        "seed=4",
    ];
    let calls = [
        "levels.values=[12, 15]",
        "repeat=1",
        "callers.total=4",
        "callers.hold_seconds=2.0",
        "seed=4",
    ];
    let bandwidth = ["levels.values=[20]", "esp.rounds=12", "esp.packets=16"];
    let phone = ["repeat=1", "phone.duration_seconds=3"];
    let cases: [(&str, &[&str]); 5] = [
        ("call-capacity-ipsec", &rooms),
        ("voice-over-profile", &serial),
        ("cost-of-protection", &calls),
        ("esp-bandwidth", &bandwidth),
        ("phone-jitter", &phone),
    ];
    for (name, sets) in cases {
        let folders = ["once", "twice"].map(|time| scratch(&format!("esp-same-{name}-{time}")));
        for folder in &folders {
            let (_, record) = run(folder, name, sets, true);
            assert_eq!(figure(&record, "esp.gateway_us"), None, "{name}");
        }
        let [once, twice] = folders.map(|folder| folder.join(name));
        let different = common::different_files(&once, &twice);
        assert!(different.is_empty(), "{name}: {different:?}");
    }
}

/// Sets of a short trial of calls behind this kind of protection.
const SHORT_CALLS: [&str; 7] = [
    "repeat=1",
    "callers.total=4",
    "callers.rate=20.0",
    "callers.hold_seconds=4.0",
    "thresholds.mos=",
    "thresholds.lost_percent=5.0",
    NO_REFUSED,
];

/// In tunnel mode the border is the product with `[gateway]` of its own: the CPU time of its gateway is part of that of
/// a call, every packet on the wire is one of the gateway, and none is refused.
#[test]
fn border_with_its_own_gateway_has_its_cost() {
    if !crate::gateway::may_make_tun() {
        return;
    }
    let folder = scratch("esp-experiments-gateway");
    for (kind, gateway, least) in [
        (11, "direct", 105.6),
        (13, "direct", 102.4),
        (13, "kernel", 102.4),
    ] {
        let level = format!("levels.values=[{kind}]");
        let gateway_set = format!("protection.gateway={gateway}");
        let mut sets = SHORT_CALLS.to_vec();
        sets.extend([level.as_str(), gateway_set.as_str()]);
        let (code, run) = run(&folder, "cost-of-protection", &sets, false);
        let case = format!("{kind} {gateway}");
        assert_eq!(code, Some(0), "{case}: {run:#}");
        let remarks = run["trials"][0]["remarks"].to_string();
        assert!(
            remarks.contains("the border is `hornwork run` with [gateway]"),
            "{case}: {remarks}"
        );
        assert_eq!(figure(&run, "esp.clear_packets"), Some(0.0), "{case}");
        assert_eq!(figure(&run, "esp.refused_packets"), Some(0.0), "{case}");
        let kbit = figure(&run, "esp.call_kbit").unwrap_or_default();
        assert!((least..least * 1.3).contains(&kbit), "{case}: {kbit}");
        let figures = &run["trials"][0]["figures"];
        let call_us = figures["cpu_us_per_call"].as_f64().unwrap_or_default();
        assert!(call_us > 0.0, "{case}: {figures:#}");
        let packet_us = figure(&run, "esp.gateway_us");
        // Media of four calls, 50 packets/s each way for 4 s.
        let direct = figure(&run, "esp.direct_packets");
        let expected = if gateway == "direct" {
            1_400.0..2_200.0
        } else {
            0.0..1.0
        };
        assert!(
            direct.is_some_and(|packets| expected.contains(&packets)),
            "{case}: {direct:?}"
        );
        if gateway == "direct" {
            assert_eq!(packet_us, None, "{case}");
            assert!(
                remarks.contains("esp.gateway_us: not measured"),
                "{case}: {remarks}"
            );
        } else {
            // 50 packets/s each way for 4 s, each through the gateway; its start is not part of a call.
            let gateway_us = packet_us.unwrap_or_default() * 400.0;
            assert!(
                gateway_us > 0.0 && call_us > gateway_us * 0.8,
                "{case}: {call_us} us for a call, of which {gateway_us} in the gateway"
            );
        }
    }
}

/// The kinds beside it: the same program without a gateway, in transport mode behind that of the test lab, with TLS.
#[test]
fn border_of_every_protection_is_the_same_program() {
    if !crate::gateway::may_make_tun() {
        return;
    }
    let folder = scratch("esp-experiments-program");
    for (kind, border) in [
        (0, "the border is `hornwork run`"),
        (
            12,
            "the border is `hornwork run` behind a gateway of the test lab",
        ),
        (4, "the border is `hornwork run`"),
    ] {
        let level = format!("levels.values=[{kind}]");
        let mut sets = SHORT_CALLS.to_vec();
        sets.push(&level);
        let (code, run) = run(&folder, "cost-of-protection", &sets, false);
        assert_eq!(code, Some(0), "{kind}: {run:#}");
        let remarks = run["trials"][0]["remarks"].to_string();
        assert!(remarks.contains(border), "{kind}: {remarks}");
        let trial = &run["trials"][0];
        assert_eq!(trial["figures"]["calls"]["established"], 4, "{kind}");
        assert_eq!(trial["leaks"], 0, "{kind}: {trial:#}");
        assert_eq!(figure(&run, "esp.clear_packets"), None, "{kind}");
        let gateway = figure(&run, "esp.gateway_us");
        assert_eq!(gateway.is_some(), kind == 12, "{kind}");
    }
}

/// The process that runs the border of a trial of `parent`.
fn border_of(parent: u32) -> Option<u32> {
    let process = |entry: std::fs::DirEntry| entry.file_name().to_str()?.parse::<u32>().ok();
    let is_border = |process: &u32| {
        let read = |file: &str| std::fs::read_to_string(format!("/proc/{process}/{file}")).ok();
        let is_child = read("status").is_some_and(|status| {
            let ppid = status.lines().find_map(|line| line.strip_prefix("PPid:"));
            ppid.is_some_and(|number| number.trim() == parent.to_string())
        });
        is_child && read("cmdline").is_some_and(|line| line.contains("\0run\0-c\0border.toml"))
    };
    let entries = std::fs::read_dir("/proc").ok()?;
    entries.flatten().filter_map(process).find(is_border)
}

/// A border that dies in a trial is a failure of the system under test, in calls and in conferences.
#[test]
fn border_that_dies_fails_its_trial() {
    if !crate::gateway::may_make_tun() {
        return;
    }
    let folder = scratch("esp-experiments-killed");
    for (name, sets) in [
        (
            "cost-of-protection",
            &["levels.values=[13]", "callers.hold_seconds=30.0"][..],
        ),
        (
            "call-capacity-ipsec",
            &["levels.values=[1]", "conference.duration_seconds=30.0"],
        ),
    ] {
        let out = folder.join(name);
        let mut lab = Command::new(env!("CARGO_BIN_EXE_hornwork"));
        lab.args(["lab", "run", name, "--set", "repeat=1", "--out"]);
        lab.arg(&out);
        for set in sets {
            lab.args(["--set", set]);
        }
        let log = std::fs::File::create(folder.join("log")).expect("a file");
        let mut lab = lab
            .stdout(std::process::Stdio::null())
            .stderr(log)
            .spawn()
            .expect("it");
        let mut border = None;
        for _ in 0..1_000 {
            border = border_of(lab.id());
            if border.is_some() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        let border = border.expect("a border").to_string();
        // Calls are up.
        common::until_written(&folder.join("log"), "trial 1 of");
        std::thread::sleep(std::time::Duration::from_secs(6));
        let killed = Command::new("kill").args(["-KILL", &border]).status();
        assert!(killed.is_ok_and(|status| status.success()), "{name}");
        let ended = lab.wait().expect("the test lab");
        let said = std::fs::read_to_string(folder.join("log")).expect("its messages");
        assert_eq!(ended.code(), Some(1), "{name}: {said}");
        let text = std::fs::read(out.join("run.json")).expect("a record");
        let run: Value = serde_json::from_slice(&text).expect("JSON");
        let trial = &run["trials"][0];
        let checks = trial["checks"].as_array().expect("checks");
        let end = checks.iter().find(|check| check["name"] == "subject_ended");
        assert!(
            end.is_some_and(|end| end["holds"] == false),
            "{name}: {checks:?}"
        );
        let remarks = trial["remarks"].to_string();
        assert!(remarks.contains("ended by itself"), "{name}: {remarks}");
        let cpu_s = trial["surroundings"]["subject_cpu_seconds"].as_f64();
        assert!(
            name != "cost-of-protection" || cpu_s > Some(0.0),
            "{trial:#}"
        );
    }
}

/// tshark at the border's end of the wire sees ESP packets, and no other ones.
#[test]
fn wire_to_the_border_has_esp_packets_alone() {
    if !crate::gateway::may_make_tun() || !common::installed(&["nsenter", "tshark"]) {
        return;
    }
    let folder = scratch("esp-experiments-wire");
    let out = folder.join("out").display().to_string();
    let mut lab = Command::new(env!("CARGO_BIN_EXE_hornwork"));
    lab.args(["lab", "run", "cost-of-protection", "--out", &out, "--force"]);
    for set in SHORT_CALLS {
        lab.args(["--set", set]);
    }
    lab.args(["--set", "levels.values=[13]"]);
    lab.args(["--set", "callers.hold_seconds=8.0"]);
    let mut lab = lab.stdout(std::process::Stdio::null()).spawn().expect("it");
    let mut border = None;
    for _ in 0..1_000 {
        border = border_of(lab.id());
        if border.is_some() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let seen = border.map(|border| {
        Command::new("nsenter")
            .arg(format!("--net=/proc/{border}/ns/net"))
            .args(["tshark", "-n", "-i", "border0", "-c", "1000"])
            .args(["-a", "duration:30", "-T", "fields", "-e", "frame.protocols"])
            .output()
            .expect("nsenter")
    });
    let ended = lab.wait().expect("the test lab");
    let seen = seen.expect("a border");
    let text = String::from_utf8_lossy(&seen.stdout).into_owned();
    let error = String::from_utf8_lossy(&seen.stderr).into_owned();
    let frames: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
    assert!(frames.len() > 300, "{} frames: {error}", frames.len());
    let other = frames
        .iter()
        .find(|frame| !frame.starts_with("eth:ethertype:ip:esp"));
    assert_eq!(other, None, "{error}");
    assert_eq!(ended.code(), Some(0));
}

/// In virtual time the user agent of this program is measured; other programs are not.
#[test]
fn phones_in_virtual_time_are_measured_or_say_why_not() {
    let folder = scratch("esp-experiments-phones");
    let sets = ["repeat=1", "phone.duration_seconds=3"];
    let (code, run) = run(&folder, "phone-jitter", &sets, true);
    assert_eq!(code, Some(0), "{run:#}");
    assert_eq!(run["verdict"], "passed", "{run:#}");
    for (index, ours) in [true, false, false, true].into_iter().enumerate() {
        let trial = &run["trials"][index];
        let mean = trial["figures"]["jitter_ms"]["mean"].as_f64();
        let delta = trial["figures"]["jitter_ms"]["delta_max"].as_f64();
        let remarks = trial["remarks"].to_string();
        if ours {
            assert!(mean < Some(0.1) && mean.is_some(), "{trial:#}");
            assert_eq!(delta, Some(20.0), "{trial:#}");
            assert!(remarks.contains("virtual time"), "{remarks}");
        } else {
            assert_eq!(mean, None, "{trial:#}");
            assert!(remarks.contains("not measured"), "{remarks}");
        }
    }
}

/// Without the rights of a link the trials run in virtual time: the terminal says so, and how many bounds were not
/// measured.
#[test]
fn virtual_time_in_the_place_of_a_link_is_named_on_the_terminal() {
    let folder = scratch("esp-experiments-virtual");
    // The number of namespaces is that of this user namespace: the program may make none.
    let script = "echo 0 > /proc/sys/user/max_net_namespaces && echo 0 > /proc/sys/user/max_user_namespaces && exec \"$@\"";
    let output = Command::new("unshare")
        .args(["-U", "--map-root-user", "sh", "-c", script, "sh"])
        .arg(env!("CARGO_BIN_EXE_hornwork"))
        .args(["lab", "run", "cost-of-protection", "--repeat", "1"])
        .args(["--set", "levels.values=[0, 11]"])
        .args(["--set", "callers.total=3"])
        .args(["--set", "callers.hold_seconds=2"])
        .args(["--no-probe", "--out"])
        .arg(folder.join("out"))
        .output()
        .expect("unshare");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    if error.contains("unshare:") || error.contains("max_net_namespaces") {
        eprintln!("skipped: no user namespace: {error}");
        return;
    }
    assert_eq!(output.status.code(), Some(0), "{said}{error}");
    assert!(
        said.contains("in virtual time, without CPU time: 2 of 2 trials: "),
        "{said}{error}"
    );
    let verdict = said.lines().find(|line| line.starts_with("verdict: "));
    let verdict = verdict.unwrap_or_default();
    assert!(
        verdict.starts_with("verdict: passed (") && verdict.ends_with("bounds not measured)"),
        "{said}"
    );
}

/// Without the right of the real-time mode the trial says which right is missing.
#[test]
fn phone_without_the_right_of_real_time_is_named() {
    let folder = scratch("esp-experiments-no-right");
    let out = folder.join("out");
    let dropped = Command::new("setpriv")
        .args([
            "--bounding-set",
            "-sys_nice",
            "--inh-caps",
            "-sys_nice",
            "true",
        ])
        .status();
    if !dropped.is_ok_and(|status| status.success()) {
        eprintln!("skipped: setpriv cannot change the user");
        return;
    }
    let output = Command::new("setpriv")
        .args(["--bounding-set", "-sys_nice", "--inh-caps", "-sys_nice"])
        .args(["prlimit", "--rtprio=0:0"])
        .arg(env!("CARGO_BIN_EXE_hornwork"))
        .args(["lab", "run", "phone-jitter", "--repeat", "1"])
        .args(["--set", "levels.values=[1]"])
        .args(["--set", "phone.duration_seconds=1"])
        .args(["--set", "phone.load_streams=2", "--no-probe", "--out"])
        .arg(&out)
        .output()
        .expect("setpriv");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let text = std::fs::read_to_string(out.join("run.json")).unwrap_or_default();
    assert!(text.contains("SCHED_FIFO"), "{said} {text}");
}

/// A fault between sealing and opening fails the run with exit code 1.
#[test]
fn damaged_packets_fail_the_run() {
    let folder = scratch("esp-experiments-damaged");
    for name in ["esp-packet-cost", "esp-bandwidth"] {
        let sets = [
            "levels.values=[20]",
            "esp.rounds=2",
            "esp.packets=4",
            "esp.openssl_seconds=0",
            "esp.damaged_percent=50",
        ];
        let (code, run) = run(&folder, name, &sets, true);
        assert_eq!(
            (code, &run["verdict"]),
            (Some(1), &"failed".into()),
            "{name}"
        );
    }
}
