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
