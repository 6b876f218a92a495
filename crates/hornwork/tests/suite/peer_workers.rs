//! `hornwork run` with several workers behaves as one border.

use crate::common;

use common::{Process, border, example, free_port, installed, media_ports, scratch};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const TWO: &str = "[sip]\nworkers = 2\n";

fn sipp(folder: &Path, name: &str, port: u16, arguments: &[&str]) -> Process {
    let port = port.to_string();
    Process::start(
        Command::new("sipp")
            .current_dir(folder)
            .args(["-i", "127.0.0.1", "-p", &port, "-nostdin"])
            .args(["-buff_size", "4000000"])
            .args(arguments)
            .stdin(Stdio::null()),
        &folder.join(format!("{name}.log")),
    )
}

/// With a log line for each call.
fn with_call_log(text: &str) -> String {
    text.replace("level = \"warn\"", "level = \"info\"")
}

/// Waits until `condition` holds for the output of the process.
fn until(process: &Process, condition: impl Fn(&str) -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !condition(&process.log()) {
        assert!(Instant::now() < end, "waited in vain: {}", process.log());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Calls of each of the two workers: their numbers are odd and even.
fn calls_of_each(log: &str) -> [usize; 2] {
    let mut calls = [0; 2];
    for line in log.lines().filter(|line| line.contains("call_offered")) {
        let number = line.split("call=").nth(1).and_then(|rest| {
            let digits = rest.split(|c: char| !c.is_ascii_digit()).next()?;
            digits.parse::<usize>().ok()
        });
        if let Some(number) = number {
            calls[number % 2] += 1;
        }
    }
    calls
}

/// SIPp's calls come from one port, or each from its own; the file is reloaded meanwhile, and no call fails.
#[test]
fn ten_thousand_calls_through_two_workers() {
    if !installed(&["sipp"]) {
        return;
    }
    for (name, file, way) in [
        ("workers-bypass", "loopback-bypass.toml", "u1"),
        ("workers-anchor", "loopback.toml", "u1"),
        ("workers-tcp", "loopback-bypass.toml", "t1"),
    ] {
        let folder = scratch(name);
        let (sip, trunk) = (free_port(), free_port());
        // A stalled machine has more calls up at a time than the price of media admits.
        let more = format!("{TWO}[limits]\ncpu_percent = 100000\n");
        let text = with_call_log(&example(file, sip, trunk, media_ports(4_000), &more));
        let mut process = border(&folder, &text, sip);
        let _uas = sipp(&folder, "uas", trunk, &["-sn", "uas", "-l", "8000"]).at_port(trunk);
        std::thread::sleep(Duration::from_millis(500));
        let target = format!("127.0.0.1:{sip}");
        let arguments = [
            "-sn", "uac", &target, "-r", "1000", "-m", "10000", "-l", "8000",
        ];
        let arguments = [&arguments[..], &["-t", way]].concat();
        let mut uac = sipp(&folder, "uac", sip + 1, &arguments);
        std::thread::sleep(Duration::from_secs(3));
        process.signal("HUP");
        let ended = uac.wait(Duration::from_secs(90));
        let tail = uac
            .log()
            .lines()
            .rev()
            .take(40)
            .collect::<Vec<_>>()
            .join("\n");
        assert_eq!(ended, Some(true), "{name}: {tail}");
        process.signal("TERM");
        assert_eq!(process.wait(Duration::from_secs(30)), Some(true));
        let log = process.log();
        let calls = calls_of_each(&log);
        assert!(
            calls.iter().all(|calls| *calls > 4_500),
            "{name}: {calls:?}"
        );
        assert_eq!(calls.iter().sum::<usize>(), 10_000);
        for once in [
            "configuration_reloaded",
            "drain_started",
            "drain_finished terminated=0",
        ] {
            assert_eq!(log.matches(once).count(), 1, "{name}: {once}");
        }
    }
}

/// A drain waits for the last call of all workers, and accepts no new one meanwhile.
#[test]
fn drain_ends_with_the_last_call_of_the_last_worker() {
    if !installed(&["sipp"]) {
        return;
    }
    let folder = scratch("workers-drain");
    let (sip, trunk) = (free_port(), free_port());
    let text = example("loopback-bypass.toml", sip, trunk, media_ports(1_000), TWO);
    let text = with_call_log(&text);
    let mut process = border(&folder, &text, sip);
    let _uas = sipp(&folder, "uas", trunk, &["-sn", "uas", "-l", "8000"]).at_port(trunk);
    std::thread::sleep(Duration::from_millis(500));
    let target = format!("127.0.0.1:{sip}");
    let calls = ["-sn", "uac", &target, "-r", "100", "-m", "20", "-d", "3000"];
    let mut uac = sipp(&folder, "uac", sip + 1, &calls);
    until(&process, |log| log.matches("call_answered").count() == 20);
    process.signal("TERM");
    until(&process, |log| log.contains("drain_started calls=20"));
    assert_eq!(
        process.wait(Duration::from_millis(500)),
        None,
        "calls stand"
    );
    let late = ["-sn", "uac", &target, "-m", "4", "-timeout", "2"];
    let mut late = sipp(&folder, "late", sip + 2, &late);
    assert_eq!(late.wait(Duration::from_secs(30)), Some(false));
    assert_eq!(uac.wait(Duration::from_secs(30)), Some(true));
    assert_eq!(process.wait(Duration::from_secs(30)), Some(true));
    let log = process.log();
    assert!(log.contains("drain_finished terminated=0"), "{log}");
}

#[test]
fn changed_number_of_workers_needs_a_restart() {
    let folder = scratch("workers-reload");
    let (first, last) = media_ports(100);
    let sip = free_port();
    let text = example("loopback.toml", sip, free_port(), (first, last), TWO);
    let mut process = border(&folder, &text, sip);
    let file = folder.join("hornwork.toml");
    std::fs::write(&file, text.replace("workers = 2", "workers = 3")).expect("file");
    process.signal("HUP");
    until(&process, |log| log.contains("configuration_refused"));
    assert!(
        process.log().contains("workers: 2 are running"),
        "{}",
        process.log()
    );
    std::fs::write(
        &file,
        text.replace(&last.to_string(), &(last - 2).to_string()),
    )
    .expect("file");
    process.signal("HUP");
    until(&process, |log| log.contains("configuration_reloaded"));
    process.signal("TERM");
    assert_eq!(process.wait(Duration::from_secs(30)), Some(true));
}

#[test]
fn settings_unsupported_with_workers_are_rejected_with_line_and_remedy() {
    let folder = scratch("workers-check");
    let sip = free_port();
    let good = example("loopback.toml", sip, free_port(), (23_200, 23_299), TWO);
    for (text, says) in [
        (
            good.replace("23200-23299", "23200-23205"),
            "too few media ports for 2 workers",
        ),
        (
            format!("{good}[limits]\nconnections = 1\n"),
            "cannot be divided among 2 workers",
        ),
        (good.replace("workers = 2", "workers = 65"), "64"),
        (
            format!("{good}[media]\naf_xdp = \"auto\"\n"),
            "delivers all media of a network interface to one worker",
        ),
        (
            format!("{good}[media]\naf_xdp = \"auto\"\nkernel_relay = \"auto\"\n"),
            "supports either AF_XDP or the kernel relay",
        ),
    ] {
        let file = folder.join("hornwork.toml");
        std::fs::write(&file, &text).expect("file");
        let output = Command::new(env!("CARGO_BIN_EXE_hornwork"))
            .args(["check", "-c"])
            .arg(&file)
            .output()
            .expect("the program starts");
        let log = String::from_utf8_lossy(&output.stderr).into_owned()
            + &String::from_utf8_lossy(&output.stdout);
        assert!(
            !output.status.success() && log.contains(says),
            "{text}: {log}"
        );
        assert!(
            log.contains("hornwork.toml:") && log.contains("remedy"),
            "{log}"
        );
    }
}
