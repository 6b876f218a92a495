//! `[threads]`: the kernel's state of a running border's threads and memory, and the messages about missing
//! capabilities.

use crate::common;

use common::{Process, free_port, installed, media_ports, scratch};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const PROGRAM: &str = env!("CARGO_BIN_EXE_hornwork");

fn configuration(folder: &Path, threads: &str) -> PathBuf {
    let port = free_port();
    let (first, last) = media_ports(4);
    let path = folder.join("border.toml");
    let text = format!(
        "[threads]\n{threads}\n[[interface]]\nname = \"here\"\nlisten = [\"udp:127.0.0.1:{port}\"]\n\
         media = {{ address = \"127.0.0.1\", ports = \"{first}-{last}\" }}\n[[trunk]]\nname = \"there\"\ninterface = \"here\"\n\
         target = \"udp:127.0.0.1:9\"\n"
    );
    std::fs::write(&path, text).unwrap();
    path
}

/// A border that has logged its listener.
fn running(command: &mut Command, folder: &Path) -> Process {
    let process = Process::start(command, &folder.join("border.log"));
    let begun = Instant::now();
    while !process.log().contains("purpose=\"sip udp\"") {
        assert!(
            begun.elapsed() < Duration::from_secs(20),
            "{}",
            process.log()
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    process
}

/// A line of the process's status in /proc.
fn status(process: u32, key: &str) -> String {
    let text = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    line.unwrap_or_default().trim().to_owned()
}

/// The scheduling policy of the first thread: field 41 of stat(5); 1 is SCHED_FIFO.
fn policy(process: u32) -> String {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let behind = text.rsplit_once(')').unwrap().1;
    behind.split_whitespace().nth(38).unwrap().to_owned()
}

#[test]
fn permitted_settings_are_applied_and_logged() {
    let folder = scratch("threads-auto");
    let allowed = std::fs::read_to_string("/proc/self/status").unwrap();
    let allowed = allowed
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let first: String = allowed
        .unwrap()
        .trim()
        .chars()
        .take_while(char::is_ascii_digit)
        .collect();
    let threads =
        format!("realtime = \"auto\"\npriority = 7\nlock_memory = \"auto\"\ncpus = [{first}]");
    let path = configuration(&folder, &threads);
    let process = running(
        Command::new(PROGRAM).args(["run", "-c"]).arg(&path),
        &folder,
    );
    let log = process.log();
    let line = |what: &str| {
        let found = log
            .lines()
            .find(|line| line.contains("threads_set") && line.contains(what));
        found.unwrap_or_else(|| panic!("{what}: {log}")).to_owned()
    };
    let done = |line: &str| line.contains("applied=true");
    let id = process.id();
    let fifo = line("setting=realtime");
    assert_eq!(done(&fifo), policy(id) == "1", "{fifo}");
    assert_eq!(
        done(&fifo),
        fifo.contains("SCHED_FIFO, priority 7"),
        "{fifo}"
    );
    let memory = line("setting=memory");
    assert_eq!(done(&memory), status(id, "VmLck:") != "0 kB", "{memory}");
    if !done(&fifo) || !done(&memory) {
        eprintln!("in part: no rights here for SCHED_FIFO or locked memory: {fifo} {memory}");
    }
    assert!(done(&line("setting=cpus")));
    assert_eq!(status(id, "Cpus_allowed_list:"), first);
}

#[test]
fn default_changes_no_thread_settings() {
    let folder = scratch("threads-never");
    let path = configuration(&folder, "");
    let process = running(
        Command::new(PROGRAM).args(["run", "-c"]).arg(&path),
        &folder,
    );
    assert_eq!(policy(process.id()), "0");
    assert_eq!(status(process.id(), "VmLck:"), "0 kB");
    assert!(!process.log().contains("threads_set"));
}

/// Without capabilities `require` prevents the start, and `auto` logs the missing ones.
#[test]
fn denied_required_setting_prevents_the_start() {
    let bare = ["--bounding-set=-all", "--inh-caps=-all"];
    if !installed(&["setpriv"]) {
        return;
    }
    let able = Command::new("setpriv").args(bare).arg("true").output();
    if !able.is_ok_and(|log| log.status.success()) {
        eprintln!("skipped: no right to drop capabilities (root)");
        return;
    }
    let folder = scratch("threads-require");
    for key in ["realtime", "lock_memory"] {
        let path = configuration(&folder, &format!("{key} = \"require\""));
        let log = Command::new("setpriv")
            .args(bare)
            .arg("prlimit")
            .args(["--rtprio=0", "--memlock=65536"])
            .arg(PROGRAM)
            .args(["run", "-c"])
            .arg(&path)
            .output()
            .unwrap();
        let why = String::from_utf8_lossy(&log.stderr).into_owned();
        assert_eq!(log.status.code(), Some(3), "{why}");
        assert!(
            why.contains(&format!("[threads] {key} was denied")),
            "{why}"
        );
        assert!(why.contains("to run without it"), "{why}");
    }
    let path = configuration(&folder, "realtime = \"auto\"\nlock_memory = \"auto\"");
    let process = running(
        Command::new("setpriv")
            .args(bare)
            .arg("prlimit")
            .args(["--rtprio=0", "--memlock=65536"])
            .arg(PROGRAM)
            .args(["run", "-c"])
            .arg(&path),
        &folder,
    );
    let log = process.log();
    assert_eq!(log.matches("applied=false").count(), 2, "{log}");
}

#[test]
fn mistakes_are_reported() {
    let folder = scratch("threads-mistakes");
    for (threads, what) in [
        ("cpus = [0, 1]", "2 CPUs for 1 workers"),
        ("priority = 99", "`priority` is 99"),
        ("realtime = \"perhaps\"", "realtime"),
    ] {
        let path = configuration(&folder, threads);
        let log = Command::new(PROGRAM)
            .args(["check", "-c"])
            .arg(&path)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&[log.stdout, log.stderr].concat()).into_owned();
        assert_eq!(log.status.code(), Some(2), "{text}");
        assert!(text.contains(what), "{text}");
    }
    // A processor that this machine does not have is not a mistake of the file, but prevents the start.
    let path = configuration(&folder, "cpus = [65000]");
    let log = Command::new(PROGRAM)
        .args(["run", "-c"])
        .arg(&path)
        .output()
        .unwrap();
    let why = String::from_utf8_lossy(&log.stderr).into_owned();
    assert_eq!(log.status.code(), Some(3), "{why}");
    assert!(why.contains("CPU 65000 is not permitted"), "{why}");
}
